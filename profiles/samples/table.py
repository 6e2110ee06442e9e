"""Measured samples by key, and `Curve`: seconds over work, read between its points.

A key names what was run, its local shape and how crowded the machine was; it knows
nothing of a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, ClassVar, Final, Self
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import ArrayLike, NDArray

from profiles.errors import InvalidQuestion, InvalidSpec, StaleProfile
from profiles.hardware import Cluster
from profiles.limits import require
from profiles.samples.operator_keys import GAPS

MOST_RUNS: Final = 100  # that a profile keeps of those that were observed

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Seconds over work (bytes, rows, FLOPs): work rises, seconds never fall."""

    work: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, work: ArrayLike) -> Floats:
        """Seconds at *work*: between two samples, a power law through both.

        Below the first sample its seconds are kept (fixed costs); above the last one
        its rate is.

        >>> curve = Curve(work=(1.0, 4.0), seconds=(1.0, 2.0))
        >>> [round(float(value), 3) for value in curve.at([0.5, 2.0, 8.0])]
        [1.0, 1.414, 4.0]
        """
        asked = np.asarray(work, dtype=np.float64)
        inside = np.exp(
            np.interp(
                np.log(np.maximum(asked, self.work[0])),
                np.log(self.work),
                np.log(self.seconds),
            )
        )
        # exp(log(x)) may miss a sample by a rounding; it may not leave its range.
        inside = np.clip(inside, self.seconds[0], self.seconds[-1])
        return inside * np.maximum(asked / self.work[-1], 1.0)


def made_monotone(
    work: Sequence[float],
    seconds: Sequence[float],
    weights: Sequence[float] | None = None,
) -> Curve:
    """The nondecreasing curve closest to *seconds* in the logarithm.

    Samples of equal work are averaged first. Then pool adjacent violators: whenever
    more work took less time, both become their (weighted, geometric) mean [1]_.

    Raises InvalidSpec where there is no sample, or one is not positive and finite.

    >>> made_monotone([1, 2, 3], [1.0, 4.0, 1.0]).seconds
    (1.0, 2.0, 2.0)

    .. [1] Barlow, Bartholomew, Bremner and Brunk 1972, section 1.2.
    """
    pairs = np.array([work, seconds, weights or [1.0] * len(work)], dtype=np.float64)
    if not pairs.size or not np.isfinite(pairs).all() or (pairs <= 0).any():
        raise InvalidSpec(
            f"a curve needs work, seconds and weights that are positive and finite; "
            f"got work {list(work)} and seconds {list(seconds)}"
        )
    distinct, where = np.unique(pairs[0], return_inverse=True)
    weight: Floats = np.bincount(where, pairs[2]).astype(np.float64)
    total: Floats = np.bincount(where, pairs[2] * np.log(pairs[1])).astype(np.float64)
    pooled = np.exp(_pooled(total / weight, weight))
    return Curve(work=tuple(distinct.tolist()), seconds=tuple(pooled.tolist()))


def _pooled(level: Floats, weight: Floats) -> Floats:
    blocks: list[tuple[float, float, int]] = []  # mean, weight, points
    for mean, mass in zip(level.tolist(), weight.tolist(), strict=True):
        points = 1
        while blocks and blocks[-1][0] > mean:
            earlier, earlier_mass, earlier_points = blocks.pop()
            mean = (earlier * earlier_mass + mean * mass) / (earlier_mass + mass)
            mass, points = mass + earlier_mass, points + earlier_points
        blocks.append((mean, mass, points))
    return np.repeat([mean for mean, _, _ in blocks], [points for *_, points in blocks])


__all__ = [
    "CollectiveKey",
    "Curve",
    "OperatorKey",
    "Sample",
    "Samples",
    "made_monotone",
]

FORWARD, BACKWARD = "forward", "backward"
BACKWARD_INPUT, BACKWARD_WEIGHT = "backward-input", "backward-weight"
DIRECTIONS = (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
ALONE = "alone"


class _Key:
    """Written as its fields in an order of its own, with bars between them."""

    __slots__ = ()
    _CALLED: ClassVar[str]
    _ORDER: ClassVar[tuple[str, ...]]

    def __str__(self) -> str:
        values = (getattr(self, name) for name in self._ORDER)
        parts = (
            "x".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in values
        )
        return "|".join(quote(part, safe=" /:+=.,()-_") for part in parts)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote; raises InvalidSpec for anything else."""
        parts = [unquote(part) for part in text.split("|")]
        if len(parts) != len(cls._ORDER):
            raise InvalidSpec(
                f"{text!r} is not {cls._CALLED}: it has {len(parts)} parts instead of "
                f"{len(cls._ORDER)}"
            )
        kinds = {one.name: str(one.type) for one in fields(cls)}  # type: ignore[arg-type]
        read: dict[str, Callable[[str, str], Any]] = {
            "int": _number,
            "tuple[int, ...]": _sizes,
        }
        found = zip(cls._ORDER, parts, strict=True)
        return cls(
            **{
                name: read[kinds[name]](part, text) if kinds[name] in read else part
                for name, part in found
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorKey(_Key):
    """One operator on one device. `strides` is empty where memory is contiguous.

    `direction` is the pass: forward, backward, or one half of a product's backward,
    backward-input or backward-weight; `co_running` names what else used the device
    or its memory meanwhile (``alone``, ``all_reduce``, ``ranks=2`` at the same work …).
    """

    device: str
    software: str
    kind: str
    direction: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    precision: str
    backend: str
    co_running: str = ALONE
    _CALLED = "an operator key"
    _ORDER = (
        *("kind", "direction", "shape", "strides", "precision", "backend"),
        *("co_running", "device", "software"),
    )

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise InvalidSpec(
                f"a pass is one of {', '.join(DIRECTIONS)}, not {self.direction!r}"
            )
        if not self.shape or min(self.shape) < 1:
            raise InvalidSpec(f"a shape has dimensions >= 1, got {self.shape}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveKey(_Key):
    """One collective over `ranks`, innermost level first: 8x4 is 4 nodes of 8."""

    fabric: str
    collective: str
    ranks: tuple[int, ...]
    groups_at_once: int = 1
    size_bytes: int
    _CALLED = "a collective key"
    _ORDER = ("collective", "ranks", "groups_at_once", "size_bytes", "fabric")

    def __post_init__(self) -> None:
        if not self.ranks or min(self.ranks) < 1 or self.groups_at_once < 1:
            raise InvalidSpec(
                f"ranks per level and groups at once are >= 1, got {self.ranks} and "
                f"{self.groups_at_once}"
            )
        if self.size_bytes < 1:
            raise InvalidSpec(f"a collective moves >= 1 byte, got {self.size_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The median of *repeats* timings; *spread* is their interquartile range over it.

    `saved_bytes` is what an operator's forward kept for its backward, if observed.
    """

    seconds: float
    spread: float
    repeats: int
    provenance: str
    saved_bytes: float | None = None

    def __post_init__(self) -> None:
        require("duration", self.seconds, "the seconds of a sample")
        require("spread", self.spread, "the spread of a sample")
        require("repeats", self.repeats, "the repeats of a sample")
        if self.saved_bytes is not None:
            require("bytes", self.saved_bytes, "the saved_bytes of a sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A table of measurements. `machine` says on what: driver, clocks, date …

    `cluster` is that machine as one to plan for, called ``local``; None if unknown.
    `runs` are documents of training runs on it, the last ones last.
    """

    operators: Mapping[OperatorKey, Sample] = field(default_factory=dict)
    collectives: Mapping[CollectiveKey, Sample] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    cluster: Cluster | None = None
    runs: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if GAPS in self.machine:
            _gaps_s(self.machine[GAPS])

    @property
    def gaps_s(self) -> tuple[float, float] | None:
        """What was computed between messages that came soon after one another, and
        long after; None of profiles without."""
        return _gaps_s(self.machine[GAPS]) if GAPS in self.machine else None

    def require(self, *, device: str, software: str | None = None) -> None:
        """Raise StaleProfile unless all operators are of *device* (and *software*)."""
        for key in self.operators:
            if key.device != device or software not in (None, key.software):
                raise StaleProfile(
                    f"these samples are of {key.device} with {key.software}, not of "
                    f"{device}{f' with {software}' if software else ''}; take new "
                    "ones with the command profile"
                )

    def merged(self, other: Samples) -> Samples:
        """Both tables; where both hold a key, *other* is newer and wins."""
        return Samples(
            operators={**self.operators, **other.operators},
            collectives={**self.collectives, **other.collectives},
            machine={**self.machine, **other.machine},
            cluster=other.cluster or self.cluster,
            runs=(*self.runs, *other.runs)[-MOST_RUNS:],
        )

    def __len__(self) -> int:
        return len(self.operators) + len(self.collectives)


def _sizes(text: str, key: str) -> tuple[int, ...]:
    return tuple(_number(part, key) for part in text.split("x")) if text else ()


def _number(text: str, key: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidSpec(f"{text!r} in the key {key!r} is not a whole number")
    return int(text)


def _gaps_s(text: str) -> tuple[float, float]:
    """Raises InvalidSpec for anything but two numbers that rise."""
    try:
        soon_s, long_s = (float(word) for word in text.split())
    except ValueError:
        soon_s = long_s = 0.0
    if not 0 < soon_s < long_s or not isfinite(long_s):
        raise InvalidSpec(
            f"the machine's {GAPS!r} are two numbers, 0 < soon < long, got {text!r}"
        )
    return soon_s, long_s


LOCAL = "local"


def local_cluster(samples: Samples) -> Cluster:
    """The machine that *samples* were taken on, as a cluster called ``local``.

    Raises InvalidQuestion where the samples do not describe their machine.
    """
    if samples.cluster is None:
        raise InvalidQuestion(
            "the profile does not describe the machine it was taken on, so there is "
            "no cluster local; take a new one with `profile --out samples.json`, or "
            "name a cluster"
        )
    return samples.cluster
