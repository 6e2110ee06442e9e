"""The integer program that solves a `ChoiceGraph`, after Alpa.

    s_v ∈ {0, 1}^k_v    one option of each node              "one option of v"
    e_vu ≥ 0            one pair of options of each edge
    Σ_j e_vu[i, j] = s_v[i]     its rows are the source's    "v to u, source option i"
    Σ_i e_vu[i, j] = s_u[j]     its columns the target's     "v to u, target option j"

(Zheng et al., OSDI 2022, section 4.2, with equalities where Alpa has inequalities and
Σ e = 1: the same integer solutions, and on a tree no fraction left to branch on, so
that e may be continuous.) Options that an edge cannot tell apart share its pairs.
Limits are rows of their own names. Costs are scaled: HiGHS takes a microsecond for
nothing.
"""

from __future__ import annotations

from math import inf

import numpy as np

from planner.sharding.choice_graph import Choice, ChoiceGraph, Chosen, Edge, Status
from planner.sharding.milp import TIME_LIMIT_S, Milp, MilpStatus

# The largest cost becomes this many units, above HiGHS's absolute tolerances of 1e-7.
LARGEST_COST = 1e4


def solve_choice(graph: ChoiceGraph, *, time_limit_s: float = TIME_LIMIT_S) -> Chosen:
    """The cheapest choice, proven; or the best that *time_limit_s* allows."""
    small = graph.merged
    scale = _scale(small)
    found = _program(small, scale).solve(time_limit_s=time_limit_s)
    status = Status(found.status.value)
    if found.status not in (MilpStatus.OPTIMAL, MilpStatus.FEASIBLE):
        return Chosen(
            status=status, choice={}, value=inf, lower=0.0, reason=found.reason
        )
    picked = {
        name: next(i for i in range(len(costs)) if found.values[_option(name, i)] > 0.5)
        for name, costs in small.nodes.items()
    }
    return certified(graph, picked, status, found.bound / scale)


def certified(
    graph: ChoiceGraph, merged_choice: Choice, status: Status, lower: float
) -> Chosen:
    """A choice priced by the graph itself, whatever its solver says it costs."""
    choice = graph.spelled_out(merged_choice)
    broken = graph.breaks(choice)
    if broken:
        reason = f"the solver's choice breaks {', '.join(broken)}"
        return Chosen(
            status=Status.FAILED, choice={}, value=inf, lower=0.0, reason=reason
        )
    value = graph.value(choice)
    lower = value if status is Status.OPTIMAL else min(max(lower, 0.0), value)
    return Chosen(status=status, choice=choice, value=value, lower=lower)


def _program(graph: ChoiceGraph, scale: float) -> Milp:
    model = Milp(name="one option a node")
    for name, costs in graph.nodes.items():
        for i, cost in enumerate(costs):
            model.binary(_option(name, i), cost=float(cost) * scale)
        terms = [(_option(name, i), 1.0) for i in range(len(costs))]
        model.require(f"one option of {name}", terms, equals=1.0)
    for number, edge in enumerate(graph.edges):
        _add_edge(model, f"{edge.source} to {edge.target} ({number})", edge, scale)
    for limit in graph.limits:
        terms = [
            (_option(name, i), float(use) / (limit.capacity or 1.0))
            for name, uses in limit.uses.items()
            for i, use in enumerate(uses)
        ]
        model.require(limit.name, terms, at_most=1.0 if limit.capacity else 0.0)
    for number, pair in enumerate(graph.apart):
        terms = [(_option(*pair.first), 1.0), (_option(*pair.second), 1.0)]
        model.require(f"apart {number}", terms, at_most=1.0)
    return model


def _add_edge(model: Milp, name: str, edge: Edge, scale: float) -> None:
    """The pairs of an edge, between classes of options whose costs are alike."""
    if not edge.costs.any():
        return
    rows, of_row = np.unique(edge.costs, axis=0, return_inverse=True)
    table, of_column = np.unique(rows, axis=1, return_inverse=True)
    pairs = np.array(
        [
            [
                model.continuous(
                    f"{name}: {i} and {j}", cost=float(cost) * scale, upper=1.0
                )
                for j, cost in enumerate(costs)
            ]
            for i, costs in enumerate(table)
        ]
    )
    for end, node, of, lines in (
        ("source", edge.source, of_row.ravel(), pairs),
        ("target", edge.target, of_column.ravel(), pairs.T),
    ):
        for number, line in enumerate(lines):
            terms = [(str(pair), 1.0) for pair in line]
            terms += [
                (_option(node, int(i)), -1.0) for i in np.flatnonzero(of == number)
            ]
            model.require(f"{name}, {end} options like {number}", terms, equals=0.0)


def _scale(graph: ChoiceGraph) -> float:
    tables = [*graph.nodes.values(), *(edge.costs for edge in graph.edges)]
    most = max((float(table.max(initial=0.0)) for table in tables), default=0.0)
    return LARGEST_COST / most if most > 0 else 1.0


def _option(name: str, index: int) -> str:
    return f"{name} takes {index}"
