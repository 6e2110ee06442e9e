"""Integer program and elimination find what trying every choice finds."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings

from planner.sharding.choice_graph import ChoiceGraph, Status
from planner.sharding.elimination import eliminate
from planner.sharding.ilp import solve_choice
from tests.support.choice_graphs import best_of_all, choice_graphs


@settings(max_examples=40, deadline=None)
@given(choice_graphs())
def test_the_integer_program_finds_the_best_of_all(graph: ChoiceGraph) -> None:
    best, found = best_of_all(graph), solve_choice(graph)
    if best == inf:
        assert found.status is Status.INFEASIBLE
        return
    assert found.status is Status.OPTIMAL
    assert found.value == pytest.approx(best)
    assert found.value == graph.value(found.choice)
    assert found.lower == found.value
    assert graph.breaks(found.choice) == []


@settings(max_examples=40, deadline=None)
@given(choice_graphs(bare=True))
def test_elimination_finds_the_best_of_all(graph: ChoiceGraph) -> None:
    found = eliminate(graph)
    assert found.value == pytest.approx(best_of_all(graph))
    assert graph.breaks(found.choice) == []


@settings(max_examples=40, deadline=None)
@given(choice_graphs())
def test_merging_followers_changes_no_price(graph: ChoiceGraph) -> None:
    merged = graph.merged
    assert merged.nodes.keys() == graph.nodes.keys() - {o.node for o in graph.follows}
    choice = {name: len(costs) - 1 for name, costs in merged.nodes.items()}
    full = graph.spelled_out(choice)
    assert merged.value(choice) == pytest.approx(graph.value(full))
    assert bool(merged.breaks(choice)) == bool(graph.breaks(full))
