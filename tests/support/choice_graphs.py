"""Small problems of one option a node, and the oracle that tries every choice."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
from hypothesis import strategies as st

from planner.sharding.choice_graph import (
    Apart,
    ChoiceGraph,
    Edge,
    Floats,
    Follow,
    Limit,
)

COSTS = st.integers(0, 20)


def best_of_all(graph: ChoiceGraph) -> float:
    """The cheapest value of any choice that keeps everything; ∞ if none does."""
    sizes = [range(len(costs)) for costs in graph.nodes.values()]
    every = (dict(zip(graph.nodes, one, strict=True)) for one in product(*sizes))
    return min(
        (graph.value(one) for one in every if not graph.breaks(one)), default=inf
    )


@st.composite
def choice_graphs(draw: st.DrawFn, *, bare: bool = False) -> ChoiceGraph:
    """Up to five nodes of up to three options; *bare* ones know no limits."""
    names = [f"n{index}" for index in range(draw(st.integers(1, 5)))]
    nodes = {name: _table(draw, draw(st.integers(1, 3))) for name in names}
    edges = [
        Edge(source=a, target=b, costs=_table(draw, len(nodes[a]), len(nodes[b])))
        for a, b in draw(st.lists(st.tuples(*[st.sampled_from(names)] * 2), max_size=7))
        if a != b
    ]
    graph = ChoiceGraph(nodes=nodes, edges=tuple(edges), follows=_follows(draw, nodes))
    if bare:
        return graph
    limits = tuple(
        Limit(
            name=f"limit {number}",
            capacity=float(draw(st.integers(0, 60))),
            uses={name: _table(draw, len(nodes[name])) for name in names},
        )
        for number in range(draw(st.integers(0, 2)))
    )
    options = [(name, i) for name in names for i in range(len(nodes[name]))]
    apart = tuple(
        Apart(first=first, second=second)
        for first, second in draw(
            st.lists(st.tuples(*[st.sampled_from(options)] * 2), max_size=3)
        )
        if first[0] != second[0]
    )
    return replace(graph, limits=limits, apart=apart)


def _table(draw: st.DrawFn, *shape: int) -> Floats:
    count = int(np.prod(shape))
    numbers = draw(st.lists(COSTS, min_size=count, max_size=count))
    return np.array(numbers, dtype=float).reshape(shape)


def _follows(draw: st.DrawFn, nodes: dict[str, Floats]) -> tuple[Follow, ...]:
    """Followers of a node before them: chains of followers, and leaders of several."""
    found = []
    for index, name in enumerate(nodes):
        if index and draw(st.integers(0, 3)) == 0:
            leader = f"n{draw(st.integers(0, index - 1))}"
            led = st.integers(0, len(nodes[name]) - 1)
            taken = tuple(draw(led) for _ in nodes[leader])
            found.append(Follow(node=name, leader=leader, options=taken))
    return tuple(found)
