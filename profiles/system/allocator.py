"""What a process asks of its memory: two habits that suit servers, not us.

allocator   glibc maps large arrays anew and hands them back when they are freed, so
            that their pages are faulted in again and again, in a virtual machine for
            some microseconds each: half of the time of pricing columns
collector   Python looks for cycles after every 700 new objects; a plan makes
            hundreds of thousands that live to its end, and few cycles
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from profiles.units import MiB

LARGEST_BYTES: Final = 32 * MiB  # that glibc takes from the heap at most
NEVER: Final = 2**31 - 1
OBJECTS: Final = 100_000  # between two looks for cycles
# Parameters of mallopt(3)
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


def keep_heap(spare_bytes: int = NEVER) -> bool:
    """Keep freed blocks of 32 MiB or less for what is made next, until *spare_bytes* of
    them lie at the heap's end; whether the C library can (glibc's can)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    large = mallopt(_MMAP_THRESHOLD, LARGEST_BYTES)
    padded = mallopt(_TOP_PAD, LARGEST_BYTES)
    return bool(large and padded and mallopt(_TRIM_THRESHOLD, spare_bytes))


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Look for cycles less often."""
    usual = gc.get_threshold()
    gc.set_threshold(OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
