"""`keep_heap`: what a process frees stays mapped, for what it makes next.

glibc gives the end of its heap back to the kernel once twice its largest freed block
is free there, and maps larger blocks one by one. Where every step frees what the step
before made, thousands of pages a step are touched for the first time again, in a
virtual machine for some microseconds each.
"""

from __future__ import annotations

import ctypes
import sys
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
