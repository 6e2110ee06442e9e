"""PipeDream's planner: layers → stages, each replicated (Narayanan et al., SOSP 2019).

For each level k of the machine, with m units and bandwidth B between them:

    A⁰(i→j)    = Σ seconds of layers i … j                                       (1)
    T(i→j, m)  = (A^(k−1)(i→j) + 4 (m − 1) · weights / (B · m)) / m              (2)
    A(i→j, m)  = min of T(i→j, m)                                                (3)
                 and, over x and m', max(A(i→x, m − m'), 2 a_x / (B · m'),
                                         T(x+1→j, m'))

T is a stage on m replicas, A the slowest stage of the best pipeline: the seconds that
a micro-batch takes in steady state. The factor 4 is the released optimizer's. A stage
is left out if what it holds, for one micro-batch of each replica set behind it, is more
than *limit_bytes*. O(L³ · m²) at each level, of arrays over (x, m').
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.baselines.layer_profile import LayerProfile
from profiles.errors import InvalidSpec

Array = NDArray[Any]
SYNC_FACTOR: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A level of the machine: *count* units of the level below, and their link."""

    count: int
    bytes_per_s: float

    def __post_init__(self) -> None:
        if self.count < 1 or self.bytes_per_s <= 0:
            raise InvalidSpec(f"a level needs units and a bandwidth, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedStage:
    """Layers *first* to *end* (without it) on *replicas* units of the outermost level.

    Inside a unit they are a pipeline of *depth* stages.
    """

    first: int
    end: int
    replicas: int
    depth: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The stages in order, and the seconds of the slowest."""

    stages: tuple[ReplicatedStage, ...]
    seconds: float

    @property
    def depth(self) -> int:
        """Stages from the first layer to the last."""
        return sum(stage.depth for stage in self.stages)


def pipedream_split(
    layers: Sequence[LayerProfile],
    levels: Sequence[Unit],
    limit_bytes: float = inf,
) -> Split:
    """The split of *layers* over *levels*, innermost first, whose slowest stage is
    fastest; infinite seconds and no stages if none fits.

    >>> two = [LayerProfile(seconds=2.0), LayerProfile(seconds=1.0)]
    >>> found = pipedream_split(two, [Unit(count=3, bytes_per_s=1.0)])
    >>> found.seconds, len(found.stages)
    (1.0, 1)

    Raises InvalidSpec without layers or levels.
    """
    if not layers or not levels:
        raise InvalidSpec("a split needs one layer and one level at least")
    below = _sums([layer.seconds for layer in layers])
    table: _Table | None = None
    for number, level in enumerate(levels, 1):
        table = _Table(layers, below, level, limit_bytes, table)
        firsts = range(1 if number == len(levels) else len(layers))
        below = np.full_like(below, inf)
        for first in firsts:
            below[first] = table.slowest(first)[:, level.count]
    assert table is not None, "there is a level"
    seconds = float(below[0, -1])
    stages = table.stages(0, len(layers) - 1) if seconds < inf else []
    return Split(stages=tuple(stages), seconds=seconds)


class _Table:
    """The recurrence on one level; `below[i, j]` are a unit's seconds for i … j."""

    def __init__(
        self,
        layers: Sequence[LayerProfile],
        below: Array,
        level: Unit,
        limit_bytes: float,
        inner: _Table | None,
    ) -> None:
        self.size, self.inner = level.count, inner
        units = np.arange(level.count + 1)
        rate = level.bytes_per_s * np.maximum(units, 1)
        weights = _sums([layer.weight_bytes for layer in layers])
        sync = SYNC_FACTOR * (units - 1) * weights[..., None] / rate
        self._alone = (below[..., None] + sync) / np.maximum(units, 1)
        self._alone[..., 0] = inf
        sent = np.array([2 * layer.activation_bytes for layer in layers])
        self._sent = sent[:, None] / rate
        self._saved = _sums([layer.saved_bytes for layer in layers])
        self._states = _sums([layer.state_bytes for layer in layers])
        self._limit = limit_bytes
        # What is left for the last stage's predecessors, [units, its replicas].
        self._before = np.maximum(units[:, None] - units, 0)
        behind = (level.count - units)[:, None] / np.maximum(units, 1)
        self._flight = np.maximum(np.ceil(behind), 1)
        self._cuts: dict[tuple[int, int], tuple[Array, Array]] = {}

    def slowest(self, first: int) -> Array:
        """A(first→j, m) as [j, m]; remembers the last stages."""
        count = len(self._sent)
        best = np.full((count, self.size + 1), inf)
        for last in range(first, count):
            alone = self._stages(np.array([first]), last)[0].diagonal()
            cut = np.full(self.size + 1, first)
            replicas = np.arange(self.size + 1)
            best[last] = alone
            if last > first:
                ends = np.arange(first, last)  # x
                slow = np.maximum(
                    best[first:last][:, self._before], self._sent[ends][:, None]
                )
                slow = np.maximum(slow, self._stages(ends + 1, last))
                flat = slow.transpose(1, 0, 2).reshape(self.size + 1, -1)
                place = flat.argmin(axis=1)
                least = flat[np.arange(self.size + 1), place]
                better = least < alone
                best[last] = np.where(better, least, alone)
                row, column = np.divmod(place, self.size + 1)
                cut = np.where(better, ends[row] + 1, cut)
                replicas = np.where(better, column, replicas)
            self._cuts[first, last] = (cut, replicas)
        return best

    def stages(self, first: int, last: int) -> list[ReplicatedStage]:
        """Those of the best pipeline of first … last on all units."""
        found: list[ReplicatedStage] = []
        units, here = self.size, last
        while here >= first and units > 0:
            cut, replicas = (int(one[units]) for one in self._cuts[first, here])
            inner = self.inner
            depth = 1 if inner is None else len(inner.stages(cut, here))
            stage = ReplicatedStage(
                first=cut, end=here + 1, replicas=replicas, depth=depth
            )
            found.insert(0, stage)
            here, units = cut - 1, units - replicas
        return found

    def _stages(self, firsts: Array, last: int) -> Array:
        """T(i→last, m') where it fits, [i, units, m']; *units* hold it and all before,
        the rest each have micro-batches that it keeps."""
        saved, states = self._saved[firsts, last], self._states[firsts, last]
        held = saved[:, None, None] * self._flight + states[:, None, None]
        alone = self._alone[firsts, last][:, None]
        return np.where(held <= self._limit, alone, inf)


def _sums(values: Sequence[float]) -> Array:
    """Σ values[i … j] at [i, j]; nothing below the diagonal."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    found: Array = np.triu(total[None, 1:] - total[:-1, None])
    return found
