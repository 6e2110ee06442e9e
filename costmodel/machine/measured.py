"""`Measured`: a profile's samples, as prices look them up.

    operator    (kind, pass, local shape, precision), so many ranks computing at once
    step        (optimizer, accumulate …), over so many parameters
    exchange    (collective, ranks by level, groups at once), over bytes; on a CPU also
                soon after another, and beside a product
    send        over bytes

An exact sample first; else the curve through its kind; else NaN, and whoever asks
falls back to the rates of the device and its links (`Sourced.or_else`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import asinh, log
from typing import Any, Final

import numpy as np

from costmodel.machine.provenance import Sourced
from costmodel.machine.sample_lookup import (
    QUARTILES,
    MessageTable,
    Shape,
    Table,
    message_tables,
)
from profiles.arrays import Array
from profiles.hardware import Island
from profiles.samples import ALONE, BESIDE, FORWARD, SOON, OperatorKey, Sample, Samples

RANKS: Final = "ranks="
NOISY: Final = "noisy"  # how the note of a noisy machine begins
_CALIBRATION: Final = re.compile(r"\bspread (\d{1,6}(?:\.\d{1,6})?) ?%")
STEP_PRECISION: Final = "fp32"  # of gradients, moments and master weights
_PAIR: Final[Shape] = (2,)
_APART: Final[Shape] = (1, 2)  # a pair of ranks on two nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Come:
    """How ranks come to a message: with a product *beside* it, or after *apart_s* of
    compute since the one before; None: long after it."""

    beside: bool = False
    apart_s: Array | None = None

    def ways(self, gaps_s: tuple[float, float] | None) -> Iterator[tuple[str, Array]]:
        """The names of samples that are so, and how far they are the price."""
        if self.beside:
            yield BESIDE, np.ones(())
        elif self.apart_s is not None and gaps_s is not None:
            soon, late = np.log(gaps_s)
            apart = np.log(np.maximum(self.apart_s, gaps_s[0]))
            yield SOON, np.clip((late - apart) / (late - soon), 0.0, 1.0)


LONG_AFTER: Final = Come()


@dataclass(kw_only=True, eq=False)
class Measured:
    """The samples of *device* while *ranks* ranks of a node are at work.

    A GPU has its cores for itself; CPU ranks share caches and memory, so that samples
    are those of as many ranks at once. Everything takes *pace* times as long as when
    it was measured, and *samples* say so already.
    """

    samples: Samples
    device: str
    ranks: int = 1
    shares_cores: bool = False
    pace: float = 1.0
    _crowds: dict[int, Measured] = field(default_factory=dict)

    def crowded(self, ranks: int) -> Measured:
        """The same samples with *ranks* ranks of a node at work."""
        if ranks == self.ranks:
            return self
        if ranks not in self._crowds:
            self._crowds[ranks] = replace(self, ranks=ranks)
        return self._crowds[ranks]

    def paced(self, times: float) -> Measured:
        """The same samples, each so many *times* as long."""
        return replace(
            self,
            samples=slower(self.samples, times),
            pace=self.pace * times,
            _crowds={},
        )

    def operator(
        self, kind: str, direction: str, dims: Sequence[Any], number: str
    ) -> Sourced | None:
        """Seconds of a pass of an operator; None if its kind was not measured."""
        table = self.table(kind, direction, number)
        return None if table is None else table.at(dims)

    def table(self, kind: str, direction: str, number: str) -> Table | None:
        """The samples of a pass of a kind of operator, with their fit."""
        return self.tables.get((kind, direction, number))

    def step(self, kind: str, parameters: Any) -> Sourced | None:
        """Seconds of a part of a step over *parameters*; none take none."""
        count = np.asarray(parameters)
        found = self.operator(kind, FORWARD, (np.maximum(count, 1.0),), STEP_PRECISION)
        return None if found is None else found.where(count > 0)

    def exchange(
        self,
        kind: str,
        size_bytes: Any,
        *,
        ranks: Any,
        near: Any,
        island: Island,
        come: Come = LONG_AFTER,
    ) -> Sourced | None:
        """Seconds of a collective over groups with *near* members in a fast domain."""
        size, k, r = np.broadcast_arrays(size_bytes, ranks, np.minimum(near, ranks))
        total: Sourced | None = None
        for whole, inside in _pairs(k, r):
            table = self._messages(kind, whole, inside, island)
            if table is None:
                continue
            here = (k == whole) & (r == inside)
            part = table.at(size)
            for how, weight in come.ways(self.gaps_s):
                other = self._messages(kind + how, whole, inside, island)
                if other is not None:
                    part = other.instead_of(table, size, part, weight)
            if here.all():
                return part
            if total is None:
                total = Sourced(seconds=np.where(k > 1, np.nan, 0.0))
            total = _chosen(here, part, total)
        return total

    def send(self, size_bytes: Any, *, far: bool, island: Island) -> Sourced | None:
        """Seconds of a transfer between two ranks, of one fast domain or of two."""
        apart = far and len(island.levels) > 1
        level = island.levels[-1 if apart else 0]
        shape, groups = (_APART, self.ranks) if apart else (_PAIR, self.ranks // 2)
        table = self._nearest(level.kind, "send", shape, groups)
        return None if table is None else table.at(np.asarray(size_bytes))

    def remarks(self) -> Iterator[str]:
        """What a reader of the price should know of the samples."""
        if self.shares_cores and self.crowd not in (0, self.ranks):
            yield (
                f"the profile has no samples with {_ranks(self.ranks)} at work on a "
                f"node; those with {_ranks(self.crowd)} are used"
            )
        noise = self.samples.machine.get("noise", "")
        if noise.startswith(NOISY):
            yield f"while its profile was taken the machine was {noise}"

    @cached_property
    def noise(self) -> float:
        """The standard deviation of the logarithm of the machine's own speed while it
        was measured, of the spread that its note on noise gives (an interquartile range
        over the median, of a normal law); 0 where nobody says."""
        found = _CALIBRATION.search(self.samples.machine.get("noise", ""))
        return 2 * asinh(float(found[1]) / 100 / 2) / QUARTILES if found else 0.0

    @cached_property
    def gaps_s(self) -> tuple[float, float] | None:
        """What was computed between messages, soon after another and long after."""
        gaps = self.samples.gaps_s
        return gaps and (gaps[0] * self.pace, gaps[1] * self.pace)

    @cached_property
    def crowd(self) -> int:
        """The number of ranks at work in the samples that are used; 0: none are."""
        wanted = self.ranks if self.shares_cores else 1
        crowds = {_crowd(key) for key in self._keys}
        apart = ((abs(log(crowd / wanted)), crowd) for crowd in crowds)
        return min(apart, default=(0.0, 0))[1]

    @property
    def turns(self) -> float:
        """How many ranks share a core: 1 unless they are more than the cores.

        The samples' machine says how many cores it has, and threads a rank.
        """
        if not self.shares_cores:
            return 1.0
        about = self.samples.machine
        cores = _count(about.get("cores", ""))
        threads = _count(about.get("threads", "")) or 1
        return max(self.ranks * threads / cores, 1.0) if cores else 1.0

    @property
    def _keys(self) -> Iterator[OperatorKey]:
        for key in self.samples.operators:
            if key.device == self.device and _crowd(key) and not key.strides:
                yield key

    @cached_property
    def tables(self) -> Mapping[tuple[str, str, str], Table]:
        """All that is used, by kind, pass and precision."""
        found: dict[tuple[str, str, str], dict[Shape, Sample]] = {}
        for key in self._keys:
            if _crowd(key) == self.crowd:
                table = found.setdefault((key.kind, key.direction, key.precision), {})
                table[key.shape] = self.samples.operators[key]
        return {name: Table(kind=name[0], samples=item) for name, item in found.items()}

    @cached_property
    def _message_tables(self) -> Mapping[tuple[str, str, Shape], Any]:
        return message_tables(self.samples)

    def _messages(
        self, kind: str, ranks: int, near: int, island: Island
    ) -> MessageTable | None:
        inside = ranks == near
        level = island.levels[0 if inside else -1]
        shape = (ranks,) if inside else (near, ranks // near)
        return self._nearest(level.kind, kind, shape, self.ranks // near)

    def _nearest(
        self, fabric: str, kind: str, shape: Shape, groups: int
    ) -> MessageTable | None:
        """The samples with as many groups at once, or nearly as many."""
        tables = self._message_tables.get((fabric.lower(), kind, shape), {})
        wanted = max(groups, 1)
        return min(
            tables.items(),
            key=lambda item: (abs(log(item[0] / wanted)), item[0]),
            default=(0, None),
        )[1]


def slower(samples: Samples, times: float) -> Samples:
    """*samples* whose seconds are so many *times* as many."""

    def each(table: Mapping[Any, Sample]) -> dict[Any, Sample]:
        return {
            key: replace(one, seconds=one.seconds * times) for key, one in table.items()
        }

    return replace(
        samples,
        operators=each(samples.operators),
        collectives=each(samples.collectives),
    )


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _crowd(key: OperatorKey) -> int:
    """How many ranks computed the same at once; 0 where something else ran beside."""
    if key.co_running == ALONE:
        return 1
    if not key.co_running.startswith(RANKS):
        return 0
    return _count(key.co_running.removeprefix(RANKS))


def _count(text: str) -> int:
    """The number that *text* is; 0 where it is none."""
    return int(text) if text.isascii() and text.isdigit() else 0


def _pairs(k: Array, r: Array) -> list[tuple[int, int]]:
    """Distinct (ranks, of them in a domain) of groups of more than one."""
    if not k.ndim:
        return [(int(k), int(r))] if k > 1 else []
    several = k > 1
    found = np.unique(np.stack([k[several], r[several]]), axis=1)
    return [(int(ranks), int(near)) for ranks, near in found.T.tolist()]


def _chosen(condition: Array, some: Sourced, others: Sourced) -> Sourced:
    return Sourced(
        **{
            name: np.where(condition, getattr(some, name), getattr(others, name))
            for name in Sourced.__dataclass_fields__
        }
    )
