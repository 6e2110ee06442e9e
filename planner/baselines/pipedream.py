"""PipeDream as a search: the uniform layout that is nearest to its split.

For the largest micro-batch first, layers are profiled, split into replicated stages
(`pipedream_stages`), and the pipeline with the nearest number of stages is simulated as
1F1B with a flush: stages of one width, no tensor parallelism, no ZeRO. The first that
fits is taken; where no micro-batch's nearest does, the next nearest.

`LayerProfile`: a layer as planners of pipelines see it, on one device of its own.

PipeDream and 2BW measure a model once, layer by layer, without tensor parallelism, and
plan from the table. Ours is priced by the same operators as every layout.

PipeDream's planner: layers → stages, each replicated (Narayanan et al., SOSP 2019).

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import ClassVar, Final, final

import numpy as np

from costmodel.layout import KEEP_ALL, Retention, body_presets
from costmodel.operators import Degrees, entry_bytes
from costmodel.stages import Atom, atom, block_prices
from planner.baselines.recipes import Rung, follow, keeping, ordered, recomputes
from planner.problem import Problem, Solution, divisors
from planner.search import AbstractSearch, Limits, leaf_bytes
from profiles.arrays import Array
from profiles.errors import InvalidSpec
from profiles.hardware import Precision, precision
from profiles.models import Block
from profiles.units import MB

_TYPICAL_BYTES = 100 * MB  # large enough that latency does not count


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """A micro-batch through one layer, there and back.

    `activation_bytes` are handed to the next layer, `weight_bytes` exchanged between
    replicas. `saved_bytes` stay for the backward of each micro-batch in flight,
    `state_bytes` all the time.
    """

    seconds: float
    activation_bytes: float = 0.0
    weight_bytes: float = 0.0
    saved_bytes: float = 0.0
    state_bytes: float = 0.0


def layer_profiles(
    problem: Problem, micro_batch: int, recompute: str = "none"
) -> tuple[LayerProfile, ...]:
    """Every layer of the problem's model, in model order."""
    graph = problem.job.graph
    policy = precision(problem.precision, gradient=problem.gradient_format)
    body = body_presets(recompute, graph)
    made = {}
    for block in graph.distinct():
        kept = body.get(block.name, KEEP_ALL)
        made[block.name] = _profiled(problem, block, policy, micro_batch, kept)
    entries = [made[block.name][1] for block in graph.layers] + [0.0]
    return tuple(
        _layer(problem, made[block.name][0], policy, handed)
        for block, (_, handed) in zip(graph.layers, pairwise(entries), strict=True)
    )


def bytes_per_s(problem: Problem, *, far: bool) -> float:
    """Of a transfer between two devices, *far*: in unlike nodes."""
    seconds = problem.machine.send_s(np.array(_TYPICAL_BYTES), far=np.array(far))
    return _TYPICAL_BYTES / float(seconds)


def _profiled(
    problem: Problem,
    block: Block,
    policy: Precision,
    micro_batch: int,
    kept: Retention,
) -> tuple[Atom, float]:
    """One block's atom, and the bytes that it is entered with."""
    one = np.array(1)
    degrees = Degrees(
        tp=one,
        cp=one,
        ep=one,
        etp=one,
        micro_batch=np.array(micro_batch),
        imbalance=problem.machine.imbalance,
        seq_len=problem.job.seq_len,
        sequence_parallel=False,
        flash_attention=problem.flash_attention,
    )
    prices = block_prices(block, degrees, policy, problem.machine)
    entered = entry_bytes(block, degrees, policy)
    framework = problem.machine.framework
    found = atom(
        block,
        prices,
        kept,
        entered,
        stops_early=framework.stops_early,
        floor=framework.host.floor,
    )
    return found, float(entered)


def _layer(
    problem: Problem, priced: Atom, policy: Precision, handed: float
) -> LayerProfile:
    trained = float(priced.parameters + priced.expert_parameters)
    seconds = priced.forward_s + priced.recompute_s + priced.backward_s
    return LayerProfile(
        seconds=float(seconds),
        activation_bytes=handed,
        weight_bytes=trained * policy.gradient.bytes,
        saved_bytes=float(priced.saved_bytes),
        state_bytes=trained * policy.state_bytes(problem.job.moments)
        + float(priced.frozen_parameters) * policy.frozen_bytes,
    )


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


MOST_UNITS: Final = 64  # a level with more is cut in two: 512 nodes are 8 × 64


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PipeDream(AbstractSearch):
    """The min-max split of layers into replicated stages."""

    name: ClassVar[str] = "pipedream"

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        return follow(self.name, problem, limits, _rungs(problem))


def levels_of(problem: Problem) -> list[Unit]:
    """The devices of a node, and the nodes."""
    node = problem.machine.cluster.islands[0].devices_per_node
    inside = max(one for one in divisors(problem.gpus) if one <= node)
    counts = [(inside, False), *((n, True) for n in _cut(problem.gpus // inside))]
    used = [(count, far) for count, far in counts if count > 1] or counts[:1]
    return [
        Unit(count=count, bytes_per_s=bytes_per_s(problem, far=far))
        for count, far in used
    ]


def _cut(units: int) -> list[int]:
    """*units* as a product of levels that are not too wide to plan over.

    >>> _cut(2048)
    [64, 32]
    """
    found = []
    while units > MOST_UNITS:
        part = max(one for one in divisors(units) if one <= MOST_UNITS)
        if part == 1:
            break
        found.append(part)
        units //= part
    return [*found, units]


def _rungs(problem: Problem) -> Iterator[Rung]:
    rule = {"tp": 1, "cp": 1, "ep": 1, "zero": 0, "schedule": "1f1b"}
    limit = problem.memory_limit_bytes
    left = []
    for recompute in recomputes(problem):
        found = keeping(problem, **rule, recompute=recompute)
        if found is None:
            continue
        found = found.take(leaf_bytes(problem, found) <= limit)
        for micro_batch in np.unique(found.micro_batch)[::-1]:
            here = found.take(found.micro_batch == micro_batch)
            depth = _depth(problem, int(micro_batch), recompute)
            near = ordered(here, np.abs(np.log(here.pp / depth)))
            yield Rung(columns=near.take(np.array([0])))
            left.append(Rung(columns=near.take(np.arange(1, len(near)))))
    yield from left


def _depth(problem: Problem, micro_batch: int, recompute: str) -> int:
    """Stages of the split that fits; of the fastest one, where none does."""
    layers, levels = layer_profiles(problem, micro_batch, recompute), levels_of(problem)
    split = pipedream_split(layers, levels, problem.memory_limit_bytes)
    return (split if split.stages else pipedream_split(layers, levels)).depth
