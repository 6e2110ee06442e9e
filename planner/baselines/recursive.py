"""Tofu's recursive partition: two ways at a time, and then the halves.

    for each factor 2 of k: pick every operator's loop of the new axis by dynamic
    programming, what the earlier axes do being fixed

After Wang, Huang and Li (EuroSys 2019, sections 5 and 6), on the operator graph instead
of their tensor language; linear in the number of operators. Every tensor is split over
every axis, and what is made small is what a rank sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log2

from costmodel.mesh_axes import mesh_axes
from costmodel.redistribution import Placed
from planner.block_problem import ENTRY, BlockProblem
from planner.choice_graph import Choice, Chosen, Status
from planner.elimination import eliminate
from planner.intra_op import BlockSharding, Posed, described, pose
from planner.sharding_choices import entry_choices
from planner.sharding_prices import SentBytes
from profiles.errors import InvalidSpec


def halves(problem: BlockProblem, ways: int) -> BlockProblem:
    """The same block on *ways* ranks, as axes of two: what both this recursion and the
    integer program can be asked.

    Raises InvalidSpec unless *ways* is a power of two.
    """
    levels = int(log2(ways)) if ways > 0 else 0
    if ways < 2 or 2**levels != ways:
        raise InvalidSpec(f"{ways} ranks cannot be halved; give a power of two from 2")
    axes = mesh_axes(**{f"half{level}": 2 for level in range(levels)})
    return replace(problem, axes=axes, even=True, memory_bytes=None)


def recursive(problem: BlockProblem, ways: int) -> BlockSharding:
    """The recursive partition over *ways* ranks; `value` is bytes that a rank sends.

    It is feasible, and optimal level by level; nothing is proven of the whole.
    """
    asked = halves(problem, ways)
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
