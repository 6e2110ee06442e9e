"""What a process that prices many layouts asks of its memory: two habits that suit
servers, not us.

allocator   glibc maps each array above 128 KiB anew and hands it back when it is
            freed, so that its pages are faulted in again and again: half of the
            time of pricing columns
collector   Python looks for cycles after every 700 new objects; a plan makes
            hundreds of thousands that live to its end, and few cycles

`keep_heap`: what a process frees stays mapped, for what it makes next.

glibc gives the end of its heap back to the kernel once twice its largest freed block
is free there, and maps larger blocks one by one. Where every step frees what the step
before made, thousands of pages a step are touched for the first time again, in a
virtual machine for some microseconds each.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from profiles.units import MiB

_TRIM_THRESHOLD: Final = -1  # of mallopt(3)
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
LARGEST_BYTES: Final = 32 * MiB  # that glibc takes from the heap at most
NEVER: Final = 2**31 - 1  # free bytes at the end before they are given back


def keep_heap() -> bool:
    """Keep blocks of 32 MiB or less; whether the C library can (glibc's can)."""
    if sys.platform != "linux":
        return False
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is None:
        return False
    wanted = (
        (_MMAP_THRESHOLD, LARGEST_BYTES),
        (_TRIM_THRESHOLD, NEVER),
        (_TOP_PAD, LARGEST_BYTES),
    )
    told = [tell(option, value) for option, value in wanted]
    return all(told)


# Parameters of mallopt(3); glibc takes no threshold above 32 MiB.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGEST_KEPT: Final = 32 << 20
_MOST_KEPT: Final = 512 << 20
_OBJECTS: Final = 100_000  # between two looks for cycles


def keep_freed_arrays() -> bool:
    """Let freed arrays be used again, until the process ends; False where the C
    library is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    large = mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
    return bool(large and mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT))


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Look for cycles less often."""
    usual = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
