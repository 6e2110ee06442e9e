"""The ways to shard an operator: for each mesh axis one loop that is split over it.

An operator is a loop nest in named dimensions. Splitting a loop over a mesh axis splits
there every tensor that has the dimension; one that lacks it is whole, and is a sum
where the loop was summed over (the einsum rule of Mesh-TensorFlow, Shazeer et al.,
NeurIPS 2018, section 3). For a product of rows × contracted with contracted × columns:

    loop          input      weight    output     gradients: input   weight
    batch, seq.   split      whole     split                 split   partial
    columns       whole      split     split                 partial split
    contracted    split      split     partial               split   split
    (none)        whole      whole     whole                 whole   whole

That no two dimensions of a tensor lie on one axis needs no check: an axis has one loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from costmodel.redistribution import PARTIAL, WHOLE, Placed
from planner.block_problem import ENTRY, ROWS, BlockProblem, dimension
from profiles.operators import Kind, Operator, Tensor


@dataclass(frozen=True, slots=True)
class OperatorChoice:
    """The loop of each axis (`whole`: all ranks do the same), and where the output is
    handed on: as it is made, but that sums are done, whole or split."""

    loops: Placed
    handed: Placed


def splittable(operator: Operator) -> tuple[str, ...]:
    """The loops of an operator that ranks can share, in a fixed order.

    Attention needs the whole sequence of a head; a norm the whole width; a table of
    positions is too small to split.
    """
    if operator.kind is Kind.ATTENTION:
        return ("batch", "heads")
    source = operator.inputs[0] if operator.inputs else operator.output
    names = [*operator.output.dims]
    if operator.has_weight and operator.contracted != "positions":
        names.append(operator.contracted or "")
    elif operator.kind is Kind.CROSS_ENTROPY:
        names = [*source.dims]
    if operator.vectors:
        names = [name for name in names if name != operator.vector_dim]
    return tuple(dict.fromkeys(map(dimension, names)))


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
    names = [one for one in _dims(tensor) if one in problem.splits]
    known, _ = problem.decided.get(ENTRY, ((), ()))
    places = product(*_begun(known, _words(names, problem)))
    fits = _split_most([one for one in places if problem.divides(one)], problem)
    return tuple(fits)


def made(operator: Operator, loops: Placed) -> Placed:
    """The output as the loops leave it."""
    dims = _dims(operator.output)
    sums = operator.kind is not Kind.CROSS_ENTROPY  # it sums its statistics itself
    return tuple(
        word if word in dims else PARTIAL if sums and word != WHOLE else WHOLE
        for word in loops
    )


def wanted(tensor: Tensor, loops: Placed) -> Placed:
    """An input as the loops read it."""
    dims = _dims(tensor)
    return tuple(word if word in dims else WHOLE for word in loops)


def gradient_made(tensor: Tensor, loops: Placed) -> Placed:
    """The gradient of an input as the loops leave it."""
    dims = _dims(tensor)
    return tuple(word if word in dims or word == WHOLE else PARTIAL for word in loops)


def summed_loops(loops: Placed) -> tuple[bool, ...]:
    """For each axis, whether ranks there see unlike rows: gradients of what they hold
    alike are to be summed over it."""
    return tuple(word in ROWS for word in loops)


def _handed(
    placed: Placed, operator: Operator, problem: BlockProblem, known: Placed
) -> list[Placed]:
    names = [one for one in _dims(operator.output) if one in problem.splits]
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


def _dims(tensor: Tensor) -> tuple[str, ...]:
    return tuple(map(dimension, tensor.dims))
