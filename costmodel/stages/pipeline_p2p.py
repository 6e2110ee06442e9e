"""What pipeline stages send each other: activations, and the gradient of a tied weight.

Between unlike meshes every rank sends what it has of the micro-batch, whoever wants
it, and the side with fewer ranks sets the time.

Each tp rank sends its own slice of the boundary activation: with sequence parallelism
that is how it lies; without, Megatron's scatter-gather optimisation cuts it so and an
all-gather inside the fast domain puts it together (SC 2021, section 4.1). Frameworks
that do not (`Framework.scatters_sends`) send the whole activation from every tp rank.

Where the embedding's table and the head share their weight, a stage that has both
holds it once; stages that have one each hold a copy and sum its gradient once a step
(Narayanan et al., SC 2021: the embedding group of Megatron-LM).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from costmodel.layout import Layout, Stage
from costmodel.machine import Machine, Sourced, changes_rail, near_members, shares
from costmodel.stages.data_parallelism import reduced_bytes
from costmodel.stages.islands import machines_of
from profiles.arrays import Array, Arrays
from profiles.hardware import Precision
from profiles.models import Job, ModelGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender(Arrays):
    """A stage that sends: the degrees and the micro-batch that its activation is cut
    by, and all its `ranks`, which send at once; arrays or numbers."""

    tp: Array
    cp: Array
    ranks: Array
    micro_batch: Array
    sequence_parallel: Array

    @classmethod
    def of(cls, layout: Layout, stage: Stage) -> Sender:
        """A stage of *layout*, in numbers."""
        numbers: dict[str, Any] = {
            "tp": stage.mesh.tp,
            "cp": stage.mesh.cp,
            "ranks": stage.mesh.size,
            "micro_batch": layout.micro_batch(stage),
            "sequence_parallel": stage.plans[0].sharding == "megatron-sp",
        }
        return cls(**numbers)


def boundary(
    job: Job, on: Machine, precision: Precision, sender: Sender, *, far: Array
) -> Sourced:
    """The transfer of one boundary activation; between fast domains where *far*."""
    sender = sender.each(np.asarray)
    tp, tokens = sender.tp, sender.micro_batch * (job.seq_len / sender.cp)
    whole = tokens * job.graph.hidden * precision.activation.bytes
    split = np.asarray(sender.sequence_parallel, dtype=bool)
    ways: dict[str, Any] = {
        "far": far,
        "shares": shares(sender.ranks, on.island),
        "changes_rail": changes_rail(sender.ranks, on.island),
    }
    if not on.framework.scatters_sends:
        return _hop(on, np.where(split, whole / tp, whole), **ways)
    sent = _hop(on, whole / tp, **ways)
    near = near_members(np.asarray(1), tp, on.island)
    joined = on.collective("all_gather", whole, ranks=tp, near=near)
    return sent + joined.where(~split)


def _hop(on: Machine, size_bytes: Array, **ways: Any) -> Sourced:
    """From a rank to that of the next stage.

    Ranks that take turns on their cores all come to send and to receive at about the
    same time, each amid the others' passes: as in a step of a ring, not as two that
    wait for nothing but each other.
    """
    if on.turns == 1:
        return on.send(size_bytes, **ways)
    far = ways.pop("far")
    both, near = np.asarray(2), np.where(far, 1, 2)
    return on.shift(size_bytes, np.ones(()), ranks=both, near=near, **ways)


def transfers(layout: Layout, job: Job, on: Machine) -> Sourced:
    """From each virtual stage of *layout* to the next."""
    stages = layout.stages
    if len(stages) == 1:
        return Sourced(seconds=np.zeros(0))
    if len(on.cluster.islands) > 1:
        return _over_islands(layout, job, on)
    domain = on.island.domain
    far = [
        any(
            here // domain != there // domain
            for here, there in zip(_ends(one), _ends(two), strict=True)
        )
        for one, two in pairwise(stages)
    ]
    senders = [Sender.of(layout, one) for one in stages]
    kinds = dict.fromkeys(senders)
    taken = _slower(
        boundary(
            job, on, layout.precision, sender, far=np.asarray(far, dtype=bool)
        ).where(len(kinds) == 1 or _beside(senders, sender))
        for sender in kinds
    )
    same = [one.held_by == two.held_by for one, two in pairwise(stages)]
    return taken.where(~np.asarray(same, dtype=bool))


def _beside(senders: Sequence[Sender], kind: Sender) -> Array:
    """Which boundaries have a stage of that *kind* at either side."""
    ours = [one == kind for one in senders]
    return np.array([one or two for one, two in pairwise(ours)])


def _slower(ways: Iterable[Sourced]) -> Sourced:
    """Of each boundary the side that takes longer."""
    found, *others = ways
    for other in others:
        later = np.asarray(other.seconds > found.seconds)
        found = found.where(~later) + other.where(later)
    return found


def _over_islands(layout: Layout, job: Job, on: Machine) -> Sourced:
    """Each boundary over the links that its two stages have in common."""
    total = Sourced(seconds=np.zeros(len(layout.stages) - 1))
    for place, pair in enumerate(pairwise(layout.stages)):
        where, *_ = machines_of(on, [stage.mesh.ranks for stage in pair])
        here = np.arange(len(layout.stages) - 1) == place
        total = total + transfers(layout, job, where).where(here)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Sends:
    """Seconds that passes take for their sends, and that transfers take beside them.

    A GPU sends beside its passes; where ranks communicate with the cores that compute,
    a pass ends when what it made is sent, and has arrived.
    """

    in_passes_s: Array
    beside_s: Array


def sends(seconds: Array, on: Machine) -> Sends:
    """How transfers of *seconds* are carried out on a machine."""
    nothing = np.zeros_like(seconds)
    if on.sends_in_passes:
        return Sends(in_passes_s=seconds, beside_s=nothing)
    return Sends(in_passes_s=nothing, beside_s=seconds)


def _ends(stage: Any) -> tuple[int, int]:
    spans = stage.mesh.ranks.spans
    return spans[0][0], spans[-1][1]


def tied_holder(graph: ModelGraph) -> tuple[str, str]:
    """The last (block, operator) that holds the tied parameter, or could."""
    return graph.tied[0][-1] if graph.tied else ("head", "logits")


def has_both_holders(graph: ModelGraph, stage: Stage) -> bool:
    """Whether *stage* has both holders of a tied parameter, and so it once."""
    return any(
        all(block in stage.layers for block, _ in holders) for holders in graph.tied
    )


def tied_held(graph: ModelGraph, stage: Stage) -> list[tuple[str, str]]:
    """The last (block, operator) of *stage* that holds the tied parameter, if any."""
    held = [one for holders in graph.tied for one in holders if one[0] in stage.layers]
    return held[-1:]


def tied_sync(
    job: Job,
    on: Machine,
    precision: Precision,
    *,
    tp: Array,
    pp: Array,
    stride: Array,
    inside: Array,
) -> Sourced:
    """Summing the tied gradient between the first and the last pipeline rank.

    *stride* is the number of ranks of a stage, each of which sums what it holds;
    *inside* says whether the two lie in one fast domain. Zero where nothing is tied or
    trained, or one stage has both holders. It travels in the format of any other
    gradient, at the step's end, and as fast as they do.
    """
    graph = job.graph
    block, name = tied_holder(graph)
    if not graph.tied or graph.block(block).operator(name).frozen:
        return Sourced(seconds=np.zeros(np.shape(pp)))
    extents = graph.block("head").extents
    size = extents["vocab"] / tp * extents["hidden"] * reduced_bytes(precision, on)
    two = np.where(pp > 1, 2, 1)
    taken = on.collective(
        "all_reduce",
        np.asarray(size),
        ranks=two,
        near=np.where(inside, two, 1),
        shares=shares(stride, on.island),
    )
    return on.once_a_step(taken)


def layout_tied_sync(layout: Layout, job: Job, on: Machine) -> Sourced:
    """The same for a finished layout; nothing where one rank holds both ends."""
    if layout.stages[0].held_by == layout.stages[-1].held_by:
        return Sourced(seconds=np.zeros(()))
    first, last = (layout.stages[place].mesh for place in (0, -1))
    on, *_ = machines_of(on, [first.ranks, last.ranks])
    domain = on.island.domain
    places = {one.ranks.spans[0][0] // domain for one in (first, last)}
    return tied_sync(
        job,
        on,
        layout.precision,
        tp=np.asarray(min(first.tp, last.tp)),  # the larger slice sets the time
        pp=np.asarray(layout.pp),
        stride=np.asarray(max(first.size, last.size)),  # and the wider stage
        inside=np.asarray(len(places) == 1),
    )
