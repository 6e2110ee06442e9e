"""Layers that are left out cost what those do that they are like."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from costmodel.layout.offload import parse_offload
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.options.pins import Pins
from planner.heterogeneous.stage_costs import joined, like, priced_at, shortened
from planner.problem.regions import orders
from tests.planner.analysis.test_largest import asked as asking_of
from tests.support.problems import problem

# One kind of layers, dense ones first, two that take turns, a head that is as much work
# as a layer, windows in every other layer
MODELS = (
    "gpt-1.3b",
    "deepseek-v2-lite",
    "llama4-maverick",
    "deepseek-v3",
    "gpt-oss-20b",
)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("away", [None, "optimizer"])
def test_they_cost_what_those_do(name: str, away: str | None) -> None:
    posed = problem(name, gpus=16, global_batch=64)
    ep = 8 if posed.job.has_experts else None
    posed = replace(posed, pins=Pins(tp=2, ep=ep), offload=parse_offload(away))
    short = shortened(posed)
    graph, fewer = posed.job.graph, short.job.graph
    assert fewer.body < graph.body
    alike = like(graph, fewer)
    kinds = [block.name for block in graph.layers[1:-2]]
    assert [fewer.layers[1 + number].name for number in alike] == kinds
    (place,) = next(orders(posed))
    whole = priced_at(posed, 8, place, np.arange(graph.body))
    found = priced_at(short, 8, place, alike)
    assert len(found) == len(whole) > 0
    for one, other in zip(found, whole, strict=True):
        for field in fields(one.option):
            assert np.array_equal(
                getattr(one.option, field.name), getattr(other.option, field.name)
            )


@pytest.mark.parametrize("name", MODELS)
def test_stages_are_joined_of_what_they_are_like(name: str) -> None:
    posed = problem(name, gpus=16)
    graph, short = posed.job.graph, shortened(posed).job.graph
    choice = Uniform(pp=graph.body, recompute="full")
    whole = spell_out(choice, graph, 8)
    few = spell_out(replace(choice, pp=short.body), short, 8)
    alike = like(graph, short).tolist()
    for first, end in ((0, graph.body), (0, 3), (5, graph.body - 1), (4, graph.body)):
        stage = joined(few, graph, alike, first, end)
        known = whole.stages[first:end]
        assert stage.layers == tuple(name for one in known for name in one.layers)
        assert stage.plans == tuple(plan for one in known for plan in one.plans)


def test_as_few_layers_are_priced_whatever_there_are() -> None:
    """So that what is known of one number of layers is known of another."""
    found = [
        shortened(asking_of("gpt-13b", 16).pose(layers=layers).problem).job.spec
        for layers in (40, 640, 1001)
    ]
    assert found[0] == found[1] == found[2]
    assert shortened(problem("gpt-mini")) == problem("gpt-mini")
