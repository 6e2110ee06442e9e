"""Units: the only module where a power of ten or two is spelled out.

SI inside: seconds, bytes, FLOP, dollars. A name carries its unit as a suffix.
"""

from __future__ import annotations

import re

from profiles.errors import InvalidSpec

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KiB, MiB, GiB, TiB = 2**10, 2**20, 2**30, 2**40
US, MS = 1e-6, 1e-3
GFLOPS, TFLOPS, PFLOPS = 1e9, 1e12, 1e15
GBIT_BYTES = GB / 8  # bytes in a gigabit, as network links are sold
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
PFLOPS_DAY_FLOPS = PFLOPS * DAY_S  # GPT-3, appendix D

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kb": KB,
    "mb": MB,
    "gb": GB,
    "tb": TB,
    "kib": KiB,
    "mib": MiB,
    "gib": GiB,
    "tib": TiB,
}
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> float:
    """Bytes of a written size; decimal and binary units are kept apart.

    >>> parse_bytes("80 GiB") == 80 * GiB
    True
    >>> parse_bytes("25MB")
    25000000.0
    """
    match = _QUANTITY.fullmatch(text)
    unit = match.group(2).lower() if match else None
    if match is None or unit not in _BYTE_UNITS:
        raise InvalidSpec(
            f"{text!r} is not a size in bytes; write a number with one of "
            "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB, such as '80 GiB'"
        )
    return float(match.group(1)) * _BYTE_UNITS[unit]


def format_bytes(size_bytes: float) -> str:
    """A size for a person, in binary units with three significant digits.

    >>> format_bytes(71.4 * GiB)
    '71.4 GiB'
    """
    for unit, scale in (("TiB", TiB), ("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if abs(size_bytes) >= scale:
            return f"{_three_digits(size_bytes / scale)} {unit}"
    return f"{size_bytes:.0f} B"


def format_seconds(duration_s: float) -> str:
    """A duration for a person.

    >>> format_seconds(0.01234)
    '12.3 ms'
    """
    if duration_s >= DAY_S:
        return f"{_three_digits(duration_s / DAY_S)} days"
    if duration_s >= HOUR_S:
        return f"{_three_digits(duration_s / HOUR_S)} h"
    if duration_s >= 1:
        return f"{_three_digits(duration_s)} s"
    if duration_s >= MS:
        return f"{_three_digits(duration_s / MS)} ms"
    return f"{_three_digits(duration_s / US)} µs"


def format_count(number: float) -> str:
    """A large count for a person, in decimal thousands.

    >>> format_count(12_900_000_000)
    '12.9 B'
    """
    for unit, scale in (("T", TB), ("B", GB), ("M", MB), ("K", KB)):
        if abs(number) >= scale:
            return f"{_three_digits(number / scale)} {unit}"
    return f"{number:.0f}"


def _three_digits(value: float) -> str:
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"
