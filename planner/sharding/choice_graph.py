"""`ChoiceGraph`: one option for each node; options cost, alone and in pairs.

    minimise    Σ_v c_v[s_v] + Σ_(v,u) R_vu[s_v, s_u]
    subject to  Σ_v m_v[s_v] ≤ M        for each limit
                not (s_v = i and s_u = j)   for each pair that is kept apart

What Alpa's integer program chooses (Zheng et al., OSDI 2022, section 4.2), without a
word about sharding: nodes are operators, options their shardings, edges the tensors
between; costs are seconds, or whatever unit the asker adds up. A node that *follows*
another has no option of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Choice = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edge:
    """What a pair of options costs: `costs[option of source, option of target]`."""

    source: str
    target: str
    costs: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Limit:
    """The options' `uses` of something, by node, sum to at most `capacity`."""

    name: str
    capacity: float
    uses: Mapping[str, Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Two options that exclude each other (Alpa's alias pairs)."""

    first: tuple[str, int]
    second: tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """`node` takes `options[i]` where its `leader` takes option i; a leader that is a
    follower too stands before."""

    node: str
    leader: str
    options: tuple[int, ...]


class Status(StrEnum):
    """What is known of a choice."""

    OPTIMAL = "optimal"  # no other is cheaper
    FEASIBLE = "feasible"  # another may be, down to the lower bound
    INFEASIBLE = "infeasible"  # none keeps the limits
    FAILED = "failed"  # none was found; there may be one


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A choice with its value, and a value that none goes below."""

    status: Status
    choice: Choice
    value: float
    lower: float
    reason: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class ChoiceGraph:
    """Nodes with the cost of each option, edges, limits, exclusions and followers."""

    nodes: Mapping[str, Floats]
    edges: tuple[Edge, ...] = ()
    limits: tuple[Limit, ...] = ()
    apart: tuple[Apart, ...] = ()
    follows: tuple[Follow, ...] = field(default=())

    def value(self, choice: Choice) -> float:
        """What *choice* costs."""
        alone = sum(float(costs[choice[name]]) for name, costs in self.nodes.items())
        return alone + sum(
            float(one.costs[choice[one.source], choice[one.target]])
            for one in self.edges
        )

    def breaks(self, choice: Choice, *, tolerance: float = 1e-6) -> list[str]:
        """The limits, exclusions and followings that *choice* does not keep."""
        found = []
        for limit in self.limits:
            used = sum(float(uses[choice[name]]) for name, uses in limit.uses.items())
            if used > limit.capacity + tolerance * abs(limit.capacity):
                found.append(limit.name)
        for pair in self.apart:
            if all(
                choice[name] == option for name, option in (pair.first, pair.second)
            ):
                found.append(f"{pair.first} apart from {pair.second}")
        for one in self.follows:
            if choice[one.node] != one.options[choice[one.leader]]:
                found.append(f"{one.node} follows {one.leader}")
        return found

    @cached_property
    def merged(self) -> ChoiceGraph:
        """The same problem without followers: their costs are their leaders'."""
        graph = self
        for one in reversed(self.follows):
            graph = _without(graph, one)
        return graph

    def spelled_out(self, choice: Choice) -> dict[str, int]:
        """A choice of `merged`, with the followers' options, in the nodes' order."""
        full = dict(choice)
        for one in self.follows:
            full[one.node] = one.options[full[one.leader]]
        return {name: full[name] for name in self.nodes}


def _without(graph: ChoiceGraph, follow: Follow) -> ChoiceGraph:
    """*graph* with one follower's costs and uses added to its leader's."""
    node, leader = follow.node, follow.leader
    index = np.asarray(follow.options)
    nodes = {name: costs for name, costs in graph.nodes.items() if name != node}
    nodes[leader] = nodes[leader] + graph.nodes[node][index]
    edges = []
    for edge in graph.edges:
        costs, source, target = edge.costs, edge.source, edge.target
        if source == node:
            costs, source = costs[index, :], leader
        if target == node:
            costs, target = costs[:, index], leader
        if source == target:
            nodes[leader] = nodes[leader] + np.diagonal(costs)
        else:
            edges.append(Edge(source=source, target=target, costs=costs))
    return ChoiceGraph(
        nodes=nodes,
        edges=tuple(edges),
        limits=tuple(_limit_without(limit, follow, index) for limit in graph.limits),
        apart=tuple(
            Apart(first=first, second=second)
            for pair in graph.apart
            for first in _led(pair.first, follow)
            for second in _led(pair.second, follow)
        ),
        follows=tuple(one for one in graph.follows if one is not follow),
    )


def _limit_without(limit: Limit, follow: Follow, index: NDArray[np.int64]) -> Limit:
    if follow.node not in limit.uses:
        return limit
    uses = {name: own for name, own in limit.uses.items() if name != follow.node}
    led = limit.uses[follow.node][index]
    uses[follow.leader] = uses[follow.leader] + led if follow.leader in uses else led
    return Limit(name=limit.name, capacity=limit.capacity, uses=uses)


def _led(option: tuple[str, int], follow: Follow) -> list[tuple[str, int]]:
    """The leader's options that mean this one of a follower; any other is itself."""
    if option[0] != follow.node:
        return [option]
    return [
        (follow.leader, mine)
        for mine, its in enumerate(follow.options)
        if its == option[1]
    ]
