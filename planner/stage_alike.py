"""Layers that are like others: a short model has all that there is to price.

What a layer costs as a stage of its own hangs on its kind, and at the model's two ends
on what else is there. So layers are left out before the last ones, until there are no
more than a node has devices (so many share its host): what they would cost, the layer
of their kind does that is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodel.layout import Layout, Stage
from planner.problem import Problem
from planner.stage_kinds import Array
from profiles.graph import ModelGraph
from profiles.models.spec import DecoderSpec

ENDING: Final = 2  # stages at the end that may be unlike others: head, what is before


def shortened(problem: Problem) -> Problem:
    """*problem* of a model with as few layers as tell what all of them cost."""
    job, islands = problem.job, problem.machine.cluster.islands
    graph, spec = job.graph, job.spec
    if not graph.turn or not isinstance(spec, DecoderSpec):
        return problem
    leading = graph.runs[0][1] if len(graph.runs) == 2 else 0
    neighbours = max(island.devices_per_node for island in islands)
    least = max(leading + graph.turn + ENDING, neighbours)
    turns = (spec.layers - least) // graph.turn
    if turns <= 0:
        return problem
    fewer = replace(spec, layers=spec.layers - turns * graph.turn)
    return replace(problem, job=replace(job, spec=fewer))


def like(graph: ModelGraph, short: ModelGraph) -> Array:
    """Of each stage of a layer of *graph* the one of the *short* model that it is like.

    Those that are left out lie before its last two.
    """
    kept, left_out = short.body - ENDING, np.arange(graph.body - short.body)
    if not len(left_out):
        return np.arange(graph.body)
    turned = kept - graph.turn + left_out % graph.turn
    return np.concatenate([np.arange(kept), turned, np.arange(kept, short.body)])


def joined(
    layout: Layout, graph: ModelGraph, stages: Sequence[int], first: int, end: int
) -> Stage:
    """Stages *first* to *end* − 1 of *graph*, a layer each, as one; each of *stages*
    is the number of the one of *layout*, of the short model, that it is like."""
    alike = [layout.stages[number] for number in stages]
    start = sum(len(stage.layers) for stage in alike[:first])
    plans = tuple(plan for stage in alike[first:end] for plan in stage.plans)
    return replace(
        layout.stages[0],
        layers=graph.layer_names[start : start + len(plans)],
        plans=plans,
    )
