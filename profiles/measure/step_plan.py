"""What a step does once, at the totals of parameters that a rank may hold, and what
ZeRO does in each unit of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from profiles.graph import Block, ModelGraph
from profiles.job import Job
from profiles.measurable import STEP_KINDS, UNIT_KINDS
from profiles.measure.tasks import FORWARD, Operation
from profiles.units import KiB, MiB

SHARES = (1, 2, 4, 8)  # a rank may hold all parameters, or down to an eighth
CURVE = (4 * KiB, 64 * KiB, MiB)


def of_step(job: Job, parts: Sequence[int]) -> Iterator[Operation]:
    """What a step does once, over totals from an eighth of the model to all of it."""
    pieces = parameter_sizes(job.graph)
    total = sum(pieces)
    totals = {total // cut for cut in (*SHARES, *parts)}
    for size in sorted(totals | {min(size, total) for size in CURVE}):
        for kind in (job.optimizer, *STEP_KINDS):
            yield Operation(
                kind=kind,
                direction=FORWARD,
                shape=(size,),
                pieces=_share(pieces, size),
            )
        yield Operation(kind="host-copy", direction=FORWARD, shape=(4 * size,))


def of_units(job: Job, parts: Sequence[int]) -> Iterator[Operation]:
    """What ZeRO does in a unit, of each kind of layer and of equal parts of it."""
    repeated = {block.name: block for block, _ in job.graph.runs}
    for block in repeated.values():
        pieces = tuple(_weights(block))
        for total in sorted({sum(pieces) // cut for cut in parts}):
            for kind in UNIT_KINDS:
                yield Operation(
                    kind=kind,
                    direction=FORWARD,
                    shape=(total,),
                    pieces=_share(pieces, total),
                )


def parameter_sizes(graph: ModelGraph) -> tuple[int, ...]:
    """Elements of every weight, layer by layer: what an optimizer's list looks like."""
    shared = {holder for holders in graph.tied for holder in holders[1:]}
    return tuple(size for block in graph.layers for size in _weights(block, shared))


def _weights(block: Block, shared: Collection[tuple[str, str]] = ()) -> Iterator[int]:
    extent = block.extents
    for operator in block.operators:
        yield from [extent[operator.vector_dim]] * operator.vectors
        if operator.has_weight and (block.name, operator.name) not in shared:
            columns = sum(extent[name] for name in operator.columns)
            yield columns * extent[operator.contracted or ""]
            yield from [columns] if operator.bias else []


def _share(pieces: Sequence[int], total: int) -> tuple[int, ...]:
    """The same tensors, each smaller, that hold *total* elements together."""
    whole = sum(pieces)
    shares = [max(piece * total // whole, 1) for piece in pieces]
    while sum(shares) > total and len(shares) > 1:
        shares.pop(shares.index(min(shares)))
    shares[shares.index(max(shares))] += total - sum(shares)
    return tuple(shares)
