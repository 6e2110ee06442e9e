"""Tofu's recursive partition: two ways at a time, and then the halves.

    for each prime factor of k, the largest first: pick every operator's loop of the new
    axis by dynamic programming, what the earlier axes do being fixed

After Wang, Huang and Li (EuroSys 2019, sections 5 and 6), on the operator graph instead
of their tensor language; linear in the number of operators and of factors. Every tensor
is split over every axis, and what is made small is what a rank sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from costmodel.mesh_axes import mesh_axes
from costmodel.placements import Placed
from planner.block_problem import ENTRY, BlockProblem
from planner.choice_graph import Choice, Chosen, Status
from planner.elimination import eliminate
from planner.intra_op import BlockSharding, Posed, described, pose
from planner.sharding_choices import entry_choices
from planner.sharding_prices import SentBytes
from profiles.errors import InvalidSpec


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


def recursive(problem: BlockProblem, ways: int) -> BlockSharding:
    """The recursive partition over *ways* ranks; `value` is bytes that a rank sends.

    It is feasible, and optimal level by level; nothing is proven of the whole. Raises
    InvalidSpec for less than two ranks.
    """
    asked = levelled(problem, ways)
    decided: Mapping[str, tuple[Placed, Placed]] = {}
    for level in range(1, len(asked.axes) + 1):
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
