"""The ways to shard an operator: for each mesh axis one loop that is split over it.

What follows for tensors and gradients is `costmodel.operator_sharding`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from costmodel.operator_sharding import made, own_dims, splittable
from costmodel.placements import PARTIAL, WHOLE, Placed
from planner.block_problem import ENTRY, BlockProblem
from profiles.operators import Operator, Tensor


@dataclass(frozen=True, slots=True)
class OperatorChoice:
    """The loop of each axis (`whole`: all ranks do the same), and where the output is
    handed on: as it is made, but that sums are done, whole or split."""

    loops: Placed
    handed: Placed


def choices(operator: Operator, problem: BlockProblem) -> tuple[OperatorChoice, ...]:
    """Every sharding of *operator* that divides."""
    allowed = [one for one in splittable(operator) if one in problem.splits]
    known, handed_on = problem.decided.get(operator.name, ((), ()))
    words = _begun(known, _words(allowed, problem))
    nests = {
        loops: _handed(made(operator, loops), operator, problem, handed_on)
        for loops in product(*words)
        if problem.divides(loops)
    }
    possible = [loops for loops, handed in nests.items() if handed]
    return tuple(
        OperatorChoice(loops, handed)
        for loops in _split_most(possible, problem)
        for handed in nests[loops]
    )


def entry_choices(tensor: Tensor, problem: BlockProblem) -> tuple[Placed, ...]:
    """Every placement in which a block may be given its input."""
    names = [one for one in own_dims(tensor) if one in problem.splits]
    known, _ = problem.decided.get(ENTRY, ((), ()))
    places = product(*_begun(known, _words(names, problem)))
    fits = _split_most([one for one in places if problem.divides(one)], problem)
    return tuple(fits)


def _handed(
    placed: Placed, operator: Operator, problem: BlockProblem, known: Placed
) -> list[Placed]:
    names = [one for one in own_dims(operator.output) if one in problem.splits]
    words = [
        every if word == PARTIAL else [word]
        for word, every in zip(placed, _words(names, problem), strict=True)
    ]
    places = product(*_begun(known, words))
    return _split_most([one for one in places if problem.divides(one)], problem)


def _begun(known: Placed, words: list[list[str]]) -> list[list[str]]:
    """*words* of each axis, where the first axes are decided those alone."""
    return [*([word] for word in known), *words[len(known) :]]


def _words(names: list[str], problem: BlockProblem) -> list[list[str]]:
    """What each axis may have: one of *names* or none; on one device, none."""
    return [[*names, WHOLE] if axis.size > 1 else [WHOLE] for axis in problem.axes]


def _split_most(places: list[Placed], problem: BlockProblem) -> list[Placed]:
    """Where all is to be even, those that leave the fewest axes whole."""
    if not problem.even:
        return places
    least = min((one.count(WHOLE) for one in places), default=0)
    return [one for one in places if one.count(WHOLE) == least]
