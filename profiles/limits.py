"""`Limit`: between what a file's numbers may lie, each quantity in this one place.

The ranges leave room beyond what is built, sold or trained: what is outside them is a
slip of the pen, and products of what is inside them are finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from profiles.errors import InvalidSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Both ends included; `zero` is allowed below them where it means none."""

    least: float
    most: float
    unit: str = ""
    zero: bool = False

    def holds(self, value: float) -> bool:
        """Whether *value* is allowed; NaN never is."""
        return (self.zero and value == 0) or self.least <= value <= self.most

    def __str__(self) -> str:
        """What is allowed, in words.

        >>> str(Limit(least=1e3, most=1e16, unit="bytes", zero=True))
        '0, or between 1,000 and 1e+16 bytes'
        >>> str(Limit(least=1, most=10_000_000))
        'between 1 and 10,000,000'
        """
        zero = "0, or " if self.zero else ""
        unit = f" {self.unit}" if self.unit else ""
        return f"{zero}between {_written(self.least)} and {_written(self.most)}{unit}"


LIMITS: Final[Mapping[str, Limit]] = {
    # figures, by what they measure
    "bytes": Limit(least=1, most=1e18, unit="bytes", zero=True),
    "bytes a second": Limit(least=1, most=1e16, unit="bytes a second", zero=True),
    "FLOP a second": Limit(least=1, most=1e20, unit="FLOP/s", zero=True),
    "seconds": Limit(least=0, most=10, unit="s"),  # latencies
    "time between failures": Limit(least=60, most=1e11, unit="s"),
    "watts": Limit(least=1e-3, most=1e6, unit="W", zero=True),
    "dollars an hour": Limit(least=1e-6, most=1e6, unit="dollars an hour", zero=True),
    "a number": Limit(least=1e-9, most=1e9, zero=True),
    # clusters and devices
    "devices": Limit(least=1, most=10_000_000),  # of a cluster, a node or a domain
    "memory": Limit(least=1e6, most=1e16, unit="bytes"),  # of a device
    "multiprocessors": Limit(least=1, most=1_000_000),
    # models
    "size": Limit(least=1, most=1_000_000_000),  # a dimension, a sequence, a batch
    "layers": Limit(least=1, most=100_000),  # a hundred times the deepest trained
    "capacity": Limit(least=1e-6, most=1_000),  # rows of an expert over the mean
    "width": Limit(least=1e-6, most=1_000),  # of a residual network
    # samples and estimates
    "duration": Limit(least=1e-12, most=1e15, unit="s"),
    "spread": Limit(least=0, most=1e6),  # a share of the median
    "repeats": Limit(least=1, most=1_000_000_000),
    # what layouts leave open
    "bucket": Limit(least=1e-6, most=1_000_000, unit="MB"),
    "imbalance": Limit(least=1, most=100_000),  # of experts: busiest over mean
}


def require(kind: str, value: float, what: str) -> None:
    """Raise InvalidSpec, naming *what* it is, for a *value* outside LIMITS[*kind*]."""
    limit = LIMITS[kind]
    if not limit.holds(value):
        raise InvalidSpec(f"{what} must be {limit}, got {_written(value)}")


def _written(value: float) -> str:
    """Whole numbers of a few digits in full, others in powers of ten.

    >>> _written(10_000_000), _written(1e16), _written(float("nan"))
    ('10,000,000', '1e+16', 'nan')
    """
    short = value == value and abs(value) < 1e10 and value == int(value)
    if short:
        return f"{int(value):,}"
    try:
        return f"{value:g}"
    except OverflowError:  # an integer beyond any float
        return f"an integer of {len(str(abs(int(value))))} digits"
