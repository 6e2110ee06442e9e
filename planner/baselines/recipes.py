"""What recipes share: rungs of candidates, tried in order until something fits.

A recipe fixes some dimensions and says in which order the others are tried. It chooses
among the candidates of the problem, so that pins, what `execute` carries out and what
is legal hold as they do for every search; where a dimension is pinned, the pin stands
in place of the recipe's rule.

The grid of DeepSpeed's autotuner: ZeRO level × micro-batch, the best measured.

Data parallelism alone, as in its tutorial ("DeepSpeed Autotuning"): levels 0 to 3,
micro-batches that are powers of two. Whether activations are checkpointed is the
user's, not its: all is recomputed only where nothing fits without. Offloading is the
question's too (`--offload`).

FSDP alone: parameters sharded over data parallelism, and nothing else.

Hybrid shards first, one to a node, then shards over all ranks (Zhao et al., VLDB 2023,
section 3.2); the largest micro-batch that fits; all is recomputed only if it must.

Hugging Face's ladder: "Efficient training on multiple GPUs" (transformers' guide).

one node        DDP if the model fits; else ZeRO, a level at a time; else tensor
                parallelism inside the node; else a pipeline beside it
several nodes   where they are joined fast, DDP and ZeRO come first as well; else, and
                where those do not fit, pipeline × tensor × data parallelism with ZeRO-1

On each rung the largest micro-batch that fits; gradient checkpointing where no rung
fits without.

Megatron-LM's takeaways (Narayanan et al., SC 2021, section 3).

1  tensor parallelism inside the node, up to its size; then pipelines across nodes
2  as little of both as fits; data parallelism is for scale
3  the micro-batch with the least (b'/b + p − 1) · (t_f(b) + t_b(b))

Interleaved schedules as its section 2.2, all recomputed only if it must be. The third
is the columns' closed form: the paper's, with what its terms leave out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, final

import numpy as np

from costmodel.layout import Columns, Uniform
from planner.problem import Counters, Problem, Solution, Space, Status, length
from planner.search import (
    AbstractSearch,
    Clock,
    Limits,
    Shortlist,
    leaf_bytes,
    leaf_s,
)
from profiles.arrays import Array
from profiles.units import GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Candidates in the order of preference. The first that fits is taken, or where
    *all* are tried the best."""

    columns: Columns
    all: bool = False


def follow(
    name: str, problem: Problem, limits: Limits, rungs: Iterable[Rung]
) -> Solution:
    """The answer of the first rung that has one: a layout, and no bound.

    `considered` counts what the recipe looked at. What its closed form says cannot fit
    is not simulated.

    Raises OutOfTime if time passes before any candidate was found to fit.
    """
    clock = Clock(limits=limits)
    shortlist = Shortlist(problem, limits.runners_up)
    considered = by_memory = 0
    for rung in rungs:
        if clock.over or shortlist.best is not None:
            break
        if not len(rung.columns):
            continue
        peaks = leaf_bytes(problem, rung.columns)
        fits = peaks <= problem.memory_limit_bytes
        considered += len(rung.columns)
        by_memory += int((~fits).sum())
        _climb(rung, np.flatnonzero(fits), shortlist, clock)
    if shortlist.best is None and clock.over:
        raise clock.out_of_time(considered)
    runners_up = shortlist.runners_up(clock)
    found = shortlist.simulated + by_memory
    return unproven(
        name,
        shortlist,
        clock,
        Counters(
            considered=max(considered, found),
            simulated=shortlist.simulated,
            by_memory=by_memory,
            by_value=max(considered - found, 0),
        ),
        runners_up=runners_up,
    )


def unproven(
    name: str,
    shortlist: Shortlist,
    clock: Clock,
    counters: Counters,
    runners_up: tuple[Any, ...] = (),
) -> Solution:
    """The best of *shortlist* as a solution that says nothing of other layouts."""
    best = shortlist.best
    return Solution(
        search=name,
        status=Status.FEASIBLE if best else Status.INFEASIBLE,
        best=best,
        value=shortlist.value,
        lower=0.0,
        lower_step_time_s=0.0,
        complete=False,
        counters=counters,
        seconds=clock.seconds,
        runners_up=runners_up,
    )


def keeping(problem: Problem, **rule: Any) -> Columns | None:
    """Candidates that keep the problem's pins and, where it has none, the *rule*'s;
    None if there are none."""
    pins = problem.pins
    free = {key: value for key, value in rule.items() if getattr(pins, key) is None}
    space = Space(problem=replace(problem, pins=replace(pins, **free)))
    branches = space.branches
    return space.leaves(branches) if length(branches) else None


def recomputes(problem: Problem) -> tuple[str, ...]:
    """Nothing, and where nothing fits everything; as pinned."""
    pinned = problem.pins.recompute
    return ("none", "full") if pinned is None else (pinned,)


def ordered(columns: Columns, *keys: Array) -> Columns:
    """Rows by *keys*, the first counting most; small before large."""
    last = (columns.zero_group * -1, columns.sequence_parallel * -1)
    return columns.take(np.lexsort((*last, *reversed(keys))))


def largest_first(columns: Columns) -> Columns:
    """The largest micro-batch first."""
    return ordered(columns, -columns.micro_batch)


def choice_of(problem: Problem, columns: Columns, row: int) -> Uniform:
    """One row, with what no column holds."""
    return Space(problem=problem).choice(columns, row)


def _climb(rung: Rung, rows: Array, shortlist: Shortlist, clock: Clock) -> None:
    for row in rows:
        if clock.over:
            return
        shortlist.simulate(choice_of(shortlist.problem, rung.columns, int(row)))
        clock.tell(shortlist.simulated, shortlist.value, 0.0)
        if shortlist.best is not None and not rung.all:
            return


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeed(AbstractSearch):
    """ZeRO 0 to 3 over all ranks, each micro-batch of a power of two, all tried."""

    name: ClassVar[str] = "deepspeed"

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        return follow(self.name, problem, limits, _rungs(problem))


def _rungs(problem: Problem) -> Iterator[Rung]:
    for recompute in recomputes(problem):
        found = keeping(problem, tp=1, pp=1, cp=1, ep=1, recompute=recompute)
        if found is not None:
            grid = _grid(problem, found)
            keys = (grid.zero, grid.micro_batch)
            yield Rung(columns=ordered(grid, *keys), all=True)


def _grid(problem: Problem, found: Columns) -> Columns:
    size, pins = found.micro_batch, problem.pins
    doubled = (size & (size - 1)) == 0
    if pins.micro_batch is not None or pins.micro_batches is not None:
        doubled |= True
    plain = (found.zero_group == found.zero_group.max()) | (found.zero == 0)
    return found.take(doubled & plain)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp(AbstractSearch):
    """ZeRO-3 in hybrid shards, tp = pp = cp = 1."""

    name: ClassVar[str] = "fsdp"

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        return follow(self.name, problem, limits, _fsdp_rungs(problem))


def _fsdp_rungs(problem: Problem) -> Iterator[Rung]:
    node = problem.machine.cluster.islands[0].devices_per_node
    for recompute in recomputes(problem):
        rule = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "zero": 3}
        found = keeping(problem, **rule, recompute=recompute)
        if found is None:
            continue
        inside = found.zero_group[found.zero_group <= node]
        hybrid = inside.max() if len(inside) else found.zero_group.min()
        for group in sorted({int(hybrid), int(found.zero_group.max())}):
            here = found.take(found.zero_group == group)
            yield Rung(columns=largest_first(here))


# [chosen] The guide says "fast inter-node connectivity" and gives no number: one port
# of 100 Gb/s a device.
FAST_BYTES_PER_S: Final = 12.5 * GB


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HfLadder(AbstractSearch):
    """DDP, ZeRO, then tensor parallelism and pipelines: the first that fits."""

    name: ClassVar[str] = "hf-ladder"

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        return follow(self.name, problem, limits, _ladder_rungs(problem))


def _ladder_rungs(problem: Problem) -> Iterator[Rung]:
    for recompute in recomputes(problem):
        for rule in _rules(problem):
            found = keeping(problem, cp=1, ep=1, recompute=recompute, **rule)
            if found is None:
                continue
            inside = found.tp <= max(_node(problem), int(found.tp.min()))
            found = found.take(inside)  # tensor parallelism stays in the node
            shards = found.zero_group == _widest(found.dp, found.zero_group)
            found = found.take(shards)
            keys = (found.pp, -found.tp, -found.micro_batch, found.virtual_stages)
            yield Rung(columns=ordered(found, *keys))


def _rules(problem: Problem) -> Iterator[dict[str, Any]]:
    if _fast(problem):
        for zero in (0, 1, 2, 3):
            yield {"tp": 1, "pp": 1, "zero": zero}
    if problem.gpus <= _node(problem):
        yield {"pp": 1, "zero": 0}
    yield {"schedule": "1f1b", "zero": 1}


def _fast(problem: Problem) -> bool:
    """One node, or nodes that are joined fast."""
    if problem.gpus <= _node(problem):
        return True
    outermost = problem.machine.cluster.islands[0].levels[-1]
    return outermost.bytes_per_s >= FAST_BYTES_PER_S


def _node(problem: Problem) -> int:
    return problem.machine.cluster.islands[0].devices_per_node


def _widest(dp: Any, group: Any) -> Any:
    """The largest shard group that each row's degree of data parallelism has."""
    widest = np.zeros(int(dp.max()) + 1, dtype=np.int64)
    np.maximum.at(widest, dp, group)
    return widest[dp]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Megatron(AbstractSearch):
    """The least tp, inside the node, and then the least pp that fits; no ZeRO."""

    name: ClassVar[str] = "megatron"

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        return follow(self.name, problem, limits, _megatron_rungs(problem))


def _megatron_rungs(problem: Problem) -> Iterator[Rung]:
    each = (
        keeping(problem, cp=1, zero=0, recompute=recompute)
        for recompute in recomputes(problem)
    )
    several = [_spread(found) for found in each if found is not None]
    shapes = {shape for found in several for shape in _shapes(problem, found)}
    for pp, tp in sorted(shapes):
        for found in several:
            here = found.take((found.pp == pp) & (found.tp == tp))
            if len(here):
                yield Rung(columns=ordered(here, leaf_s(problem, here)))


def _shapes(problem: Problem, found: Columns) -> set[tuple[int, int]]:
    """(pp, tp): a pipeline only where tp is as wide as the node lets it be."""
    node = problem.machine.cluster.islands[0].devices_per_node
    inside = found.tp[found.tp <= node]
    widest = inside.max() if len(inside) else found.tp.min()
    wanted = (found.tp == widest) | ((found.pp == 1) & (found.tp <= widest))
    pairs: Array = np.stack([found.pp[wanted], found.tp[wanted]], axis=1)
    return {(int(pp), int(tp)) for pp, tp in pairs}


def _spread(found: Columns) -> Columns:
    """Experts over as many ranks as there are, sequence parallelism where it can be."""
    shape = np.stack([found.tp, found.pp, found.dp])
    _, group = np.unique(shape, axis=1, return_inverse=True)
    best = np.zeros(group.max() + 1, dtype=np.int64)
    rank = found.ep * 2 + found.sequence_parallel
    np.maximum.at(best, group, rank)
    return found.take(rank == best[group])
