"""Tofu as a search: the uniform layout that is nearest to its recursive partition.

One layer is partitioned over all ranks (`recursive`), and each level of the recursion
gives its factor to the degree that its products split:

    rows of sequences → dp     rows of one sequence → cp     widths or heads → tp

No pipeline; ZeRO-3 over all ranks that hold a weight alike, since Tofu splits every
tensor evenly. As few passes as fit: the recursion is asked for each number of them, and
the candidate with the nearest degrees is simulated. Of a layer with routed experts the
operators before them are partitioned, and experts lie on as many ranks as can be.

Tofu's recursive partition: two ways at a time, and then the halves.

    for each prime factor of k, the largest first: pick every operator's loop of the new
    axis by dynamic programming, what the earlier axes do being fixed

After Wang, Huang and Li (EuroSys 2019, sections 5 and 6), on the operator graph instead
of their tensor language; linear in the number of operators and of factors. Every tensor
is split over every axis, and what is made small is what a rank sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from math import prod
from typing import ClassVar, Final, final

import numpy as np

from costmodel.layout import WHOLE, Columns, Placed
from costmodel.machine import mesh_axes
from costmodel.operators import ROWS, weight_of
from planner.baselines.recipes import Rung, follow, keeping, ordered, recomputes
from planner.problem import Problem, Solution
from planner.search import AbstractSearch, Clock, Limits, leaf_bytes
from planner.sharding import (
    ENTRY,
    ROUTED,
    BlockProblem,
    BlockSharding,
    Choice,
    Chosen,
    Posed,
    SentBytes,
    Status,
    described,
    eliminate,
    entry_choices,
    pose,
)
from profiles.arrays import Array
from profiles.errors import InvalidSpec
from profiles.hardware import precision
from profiles.models import Block, Kind


def levelled(problem: BlockProblem, ways: int) -> BlockProblem:
    """The same block on *ways* ranks, as axes of the prime factors: what both this
    recursion and the integer program can be asked.

    Raises InvalidSpec for less than two ranks.
    """
    if ways < 2:
        raise InvalidSpec(f"{ways} ranks share nothing; give 2 or more")
    factors = _primes(ways)[::-1]
    axes = mesh_axes(**{f"level{number}": size for number, size in enumerate(factors)})
    return replace(problem, axes=axes, even=True, memory_bytes=None)


def recursive(
    problem: BlockProblem, ways: int, between: Callable[[], None] = lambda: None
) -> BlockSharding:
    """The recursive partition over *ways* ranks; `value` is bytes that a rank sends.
    *between* is called before each level: it may raise.

    It is feasible, and optimal level by level; nothing is proven of the whole. Raises
    InvalidSpec for less than two ranks.
    """
    asked = levelled(problem, ways)
    decided: Mapping[str, tuple[Placed, Placed]] = {}
    for level in range(1, len(asked.axes) + 1):
        between()
        step = replace(asked, axes=asked.axes[:level], decided=decided)
        posed = pose(step, SentBytes())
        found = eliminate(posed.graph)
        decided = _decided(posed, found.choice)
    partition = Chosen(
        status=Status.FEASIBLE, choice=found.choice, value=found.value, lower=0.0
    )
    return described(posed, partition)


def _primes(number: int) -> list[int]:
    """Prime factors, the smallest first.

    >>> _primes(96)
    [2, 2, 2, 2, 2, 3]
    """
    found, factor = [], 2
    while factor * factor <= number:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return [*found, number] if number > 1 else found


def _decided(posed: Posed, choice: Choice) -> dict[str, tuple[Placed, Placed]]:
    known = {
        name: (one[choice[name]].choice.loops, one[choice[name]].choice.handed)
        for name, one in posed.options.items()
    }
    entry = posed.problem.block.entry
    if entry is not None:
        place = entry_choices(entry, posed.problem)[choice[ENTRY]]
        known[ENTRY] = (place, place)
    return known


Degrees = dict[str, int]
EXPERTS: Final = "experts"  # the dimension of a router's scores
_DEGREE_OF: Final = dict(zip(ROWS, ("dp", "cp"), strict=True))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tofu(AbstractSearch):
    """The recursive partition of a layer over all ranks."""

    name: ClassVar[str] = "recursive"

    def solve(self, problem: Problem, limits: Limits) -> Solution:
        return follow(self.name, problem, limits, _rungs(problem, Clock(limits=limits)))


def partition(
    problem: Problem,
    micro_batches: int,
    ways: int,
    between: Callable[[], None] = lambda: None,
) -> Degrees:
    """dp, cp and tp of the recursion over *ways* ranks, a step being so many passes."""
    if ways == 1:
        return {"dp": 1, "cp": 1, "tp": 1}
    asked = BlockProblem(
        block=_dense(problem.job.graph.runs[0][0]),
        axes=mesh_axes(tp=ways),
        sequences=problem.job.global_batch // micro_batches,
        seq_len=problem.job.seq_len,
        machine=problem.machine,
        precision=precision(problem.precision, gradient=problem.gradient_format),
        micro_batches=micro_batches,
        flash_attention=problem.flash_attention,
    )
    sizes = [axis.size for axis in levelled(asked, ways).axes]
    words = _of_most_weight(asked, recursive(asked, ways, between).loops)
    return {
        degree: prod(
            size
            for size, word in zip(sizes, words, strict=True)
            if _DEGREE_OF.get(word, "tp") == degree and word != WHOLE
        )
        for degree in ("dp", "cp", "tp")
    }


def _of_most_weight(problem: BlockProblem, loops: Mapping[str, Placed]) -> list[str]:
    """What each axis splits of the products: the loop that most of their weights are
    multiplied in, the first by name of equals."""
    votes: list[Counter[str]] = [Counter() for _ in next(iter(loops.values()))]
    for operator in problem.block.operators:
        if operator.kind is Kind.MATMUL:
            size = prod(map(problem.width, weight_of(operator).dims))
            for count, word in zip(votes, loops[operator.name], strict=True):
                count["tp" if word not in (*ROWS, WHOLE) else word] += size
    return [min(one, key=lambda word: (-one[word], word)) for one in votes]


def _dense(block: Block) -> Block:
    """*block* as far as its tokens are not routed to experts."""
    before = takewhile(
        lambda one: EXPERTS not in one.output.dims and one.kind not in ROUTED,
        block.operators,
    )
    return replace(block, operators=tuple(before))


def _rungs(problem: Problem, clock: Clock) -> Iterator[Rung]:
    known: dict[int, Degrees] = {}  # a recursion knows nothing of recomputation
    left = []
    for recompute in recomputes(problem):
        found = keeping(problem, pp=1, zero=3, recompute=recompute)
        if found is None:
            continue
        ways = problem.gpus // int(found.pp.min())
        clock.require()
        peaks = leaf_bytes(problem, found)
        passes = problem.job.global_batch // (found.micro_batch * found.dp)
        for count in np.unique(passes[peaks <= problem.memory_limit_bytes]).tolist():
            if count not in known:
                known[count] = partition(problem, count, ways, clock.require)
            here = found.take(passes == count)
            near = ordered(here, _apart(here, known[count]), -here.zero_group, -here.ep)
            yield Rung(columns=near.take(np.array([0])))
            left.append(Rung(columns=near.take(np.arange(1, len(near)))))
    yield from left


def _apart(columns: Columns, degrees: Degrees) -> Array:
    """How many doublings lie between each row's degrees and the partition's."""
    return np.asarray(
        sum(
            np.abs(np.log2(getattr(columns, name) / size))
            for name, size in degrees.items()
        )
    )
