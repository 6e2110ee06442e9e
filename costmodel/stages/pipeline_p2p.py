"""What pipeline stages send each other: activations, and gradients of shared weights.

A boundary carries the entry of the layer behind it, and what layers further on read of
layers before it: every stage between hands that on (`ModelGraph.handed_on`).

Between unlike meshes every rank sends what it has of the micro-batch, whoever wants
it, and the side with fewer ranks sets the time.

Each tp rank sends its own slice of the boundary activation: with sequence parallelism
that is how it lies; without, Megatron's scatter-gather optimisation cuts it so and an
all-gather inside the fast domain puts it together (SC 2021, section 4.1). Frameworks
that do not (`Framework.scatters_sends`) send the whole activation from every tp rank.

Where layers share weights, such as the embedding's table and the head, a stage that has
several of them holds those once; stages that have some each hold a copy and sum its
gradient once a step (Narayanan et al., SC 2021: the embedding group of Megatron-LM).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

from costmodel.layout import Layout, Stage
from costmodel.machine import Machine, Sourced, changes_rail, near_members, shares
from costmodel.operators import Degrees, parameters
from costmodel.stages.data_parallelism import reduced_bytes
from costmodel.stages.islands import machines_of
from profiles.arrays import Array, Arrays
from profiles.hardware import Precision
from profiles.models import EVERY_OPERATOR, Block, Job, ModelGraph, Operator


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
    job: Job,
    on: Machine,
    precision: Precision,
    sender: Sender,
    *,
    far: Array,
    width: Any = None,
) -> Sourced:
    """The transfer of what one boundary carries, *width* elements a token, or at least
    of what any does; between fast domains where *far*."""
    sender = sender.each(np.asarray)
    tp, tokens = sender.tp, sender.micro_batch * (job.seq_len / sender.cp)
    width = job.graph.narrowest if width is None else width
    whole = tokens * width * precision.activation.bytes
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
    ends = [end - 1 for end in accumulate(len(one.layers) for one in stages[:-1])]
    width = np.array([job.graph.handed_on[end] for end in ends])
    senders = [Sender.of(layout, one) for one in stages]
    kinds = dict.fromkeys(senders)
    taken = _slower(
        boundary(
            *(job, on, layout.precision, sender),
            far=np.asarray(far, dtype=bool),
            width=width,
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


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters that a stage has `count` layers of, where others may have some too:
    those of `operator` of the layer, or of all of its operators."""

    layer: str
    operator: str
    count: int
    alone: bool  # no other layer has them


def held_together(graph: ModelGraph, stage: Stage) -> list[Held]:
    """The parameters that layers of *stage* share, with each other or with others."""
    found = []
    for group in graph.sharing:
        here = [one for one in group if one[0] in stage.layers]
        if here:
            alone = len(here) == len(group)
            found.append(Held(*here[-1], count=len(here), alone=alone))
    return found


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
    """At least the sum of the gradients that every pipeline's first and last rank
    share: of the embedding's table where the head has it too, and of numbered layers
    that all have the same weights, which all ranks sum.

    *stride* is the number of ranks of a stage, each of which sums what it holds;
    *inside* says whether all ranks lie in one fast domain. Zero where nothing is tied
    or trained, or one stage has all of it. It travels in the format of any other
    gradient, at the step's end, and as fast as they do.
    """
    graph, total = job.graph, Sourced(seconds=np.zeros(np.shape(pp)))
    for group in graph.sharing:
        holders = {layer for layer, _ in group}
        if {"embedding", "head"} <= holders:
            ranks = np.where(pp > 1, 2, 1)
        elif len(holders) == graph.body:
            ranks = np.where(pp <= graph.body, pp, 1)  # else ends stand alone
        else:
            continue
        sent = _summed(graph, group[-1], on, precision, tp, ranks, stride, inside)
        total = total + sent
    return total


def _summed(
    graph: ModelGraph,
    holder: tuple[str, str],
    on: Machine,
    precision: Precision,
    tp: Array,
    ranks: Array,
    stride: Array,
    inside: Array,
) -> Sourced:
    """The sum over *ranks* stages of what a *holder*, a layer and its operator, has."""
    size = shared_parameters(graph, holder, tp) * reduced_bytes(precision, on)
    taken = on.collective(
        "all_reduce",
        np.asarray(size),
        ranks=ranks,
        near=np.where(inside, ranks, 1),
        shares=shares(stride, on.island),
    )
    return on.once_a_step(taken).where(np.asarray(size) > 0)


def shared_parameters(graph: ModelGraph, holder: tuple[str, str], tp: Any) -> Any:
    """Trained parameters of a *holder*, a layer and one or all of its operators, that
    each of *tp* ranks has."""
    layer, name = holder
    block = graph.layer_blocks[layer]
    if name != EVERY_OPERATOR:
        return _table(block, block.operator(name), tp)
    one = np.ones((), dtype=np.int64)
    degrees = Degrees(
        tp=np.asarray(tp), cp=one, micro_batch=one, seq_len=1, sequence_parallel=False
    )
    held = (parameters(item, block, degrees) for item in block.operators)
    trained = [not item.frozen for item in block.operators]
    return sum(size * some for size, some in zip(held, trained, strict=True))


def _table(block: Block, operator: Operator, tp: Any) -> Any:
    """Of a weight that is cut over *tp* in its words."""
    if operator.frozen:
        return np.zeros(np.shape(tp))
    assert operator.contracted is not None, "a table has rows"
    names = sorted((*operator.columns, operator.contracted), key="vocab".__ne__)
    return block.extents[names[0]] / tp * prod(block.extents[one] for one in names[1:])


def layout_tied_sync(layout: Layout, job: Job, on: Machine) -> Sourced:
    """By pipeline rank, the sums of gradients of what several ranks hold."""
    total = Sourced(seconds=np.zeros(layout.pp))
    for group in job.graph.sharing:
        holders = {layer for layer, _ in group}
        stages = [one for one in layout.stages if holders.intersection(one.layers)]
        ranks = sorted({rank for one in stages for rank in one.held_by})
        if len(ranks) > 1 and len({one.held_by for one in stages}) > 1:
            seconds = _layout_sum(layout, job, on, group[-1], stages)
            here = np.isin(np.arange(layout.pp), ranks)
            total = total + seconds.where(here)
    return total


def _layout_sum(
    layout: Layout,
    job: Job,
    on: Machine,
    holder: tuple[str, str],
    stages: Sequence[Stage],
) -> Sourced:
    """The sum over *stages* of what a *holder*, a layer and its operator, has."""
    meshes = {stage.held_by: stage.mesh for stage in stages}.values()
    on, *_ = machines_of(on, [one.ranks for one in meshes])
    domain = on.island.domain
    places = {one.ranks.spans[0][0] // domain for one in meshes}
    return _summed(
        job.graph,
        holder,
        on,
        layout.precision,
        np.asarray(min(one.tp for one in meshes)),  # the larger slice sets the time
        np.asarray(len(meshes)),
        np.asarray(max(one.size for one in meshes)),  # and the wider stage
        np.asarray(len(places) == 1),
    )
