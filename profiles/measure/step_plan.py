"""What a step does once, at the totals of parameters that a rank may hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiles.graph import ModelGraph
from profiles.job import Job
from profiles.measurable import STEP_KINDS
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


def parameter_sizes(graph: ModelGraph) -> tuple[int, ...]:
    """Elements of every weight, layer by layer: what an optimizer's list looks like."""
    sizes: list[int] = []
    shared = {holder for holders in graph.tied for holder in holders[1:]}
    for block in graph.layers:
        for operator in block.operators:
            extent = block.extents
            sizes += [extent[operator.vector_dim]] * operator.vectors
            if operator.has_weight and (block.name, operator.name) not in shared:
                columns = sum(extent[name] for name in operator.columns)
                sizes.append(columns * extent[operator.contracted or ""])
                sizes += [columns] if operator.bias else []
    return tuple(sizes)


def _share(pieces: Sequence[int], total: int) -> tuple[int, ...]:
    """The same tensors, each smaller, that hold *total* elements together."""
    whole = sum(pieces)
    shares = [max(piece * total // whole, 1) for piece in pieces]
    while sum(shares) > total and len(shares) > 1:
        shares.pop(shares.index(min(shares)))
    shares[shares.index(max(shares))] += total - sum(shares)
    return tuple(shares)
