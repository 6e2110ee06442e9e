"""Tied parameters: one parameter, several holders, one gradient.

Where the embedding's table and the head share their weight, a stage that has both
holds it once; stages that have one each hold a copy and sum its gradient once a step
(Narayanan et al., SC 2021: the embedding group of Megatron-LM).
"""

from __future__ import annotations

import numpy as np

from costmodel.layout import Layout, Stage
from costmodel.machine import Machine, Sourced, shares
from costmodel.stages.data_parallelism import reduced_bytes
from costmodel.stages.islands import machines_of
from profiles.arrays import Array
from profiles.hardware import Precision
from profiles.models import Job, ModelGraph


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
