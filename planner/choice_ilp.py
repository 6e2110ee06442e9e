"""The integer program that solves a `ChoiceGraph`, after Alpa.

    s_v ∈ {0, 1}^k_v    one option of each node              "one option of v"
    e_vu ≥ 0            one pair of options of each edge
    Σ_j e_vu[i, j] = s_v[i]     its rows are the source's    "v to u, source option i"
    Σ_i e_vu[i, j] = s_u[j]     its columns the target's     "v to u, target option j"

(Zheng et al., OSDI 2022, section 4.2, with equalities where Alpa has inequalities and
Σ e = 1: the same integer solutions, and on a tree no fraction left to branch on, so that
e may be continuous.) Limits are rows of their own names. Costs are scaled: HiGHS takes
differences of a microsecond for nothing.
"""

from __future__ import annotations

from math import inf

from planner.choice_graph import Choice, ChoiceGraph, Chosen, Edge, Status
from planner.milp import TIME_LIMIT_S, Milp, MilpStatus

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
            status=status, choice={}, value_s=inf, lower_s=0.0, reason=found.reason
        )
    picked = {
        name: next(i for i in range(len(costs)) if found.values[_option(name, i)] > 0.5)
        for name, costs in small.nodes.items()
    }
    return certified(graph, picked, status, found.bound / scale)


def certified(
    graph: ChoiceGraph, merged_choice: Choice, status: Status, lower_s: float
) -> Chosen:
    """A choice priced by the graph itself, whatever its solver says it costs."""
    choice = graph.spelled_out(merged_choice)
    broken = graph.breaks(choice)
    if broken:
        reason = f"the solver's choice breaks {', '.join(broken)}"
        return Chosen(
            status=Status.FAILED, choice={}, value_s=inf, lower_s=0.0, reason=reason
        )
    value_s = graph.value_s(choice)
    lower_s = value_s if status is Status.OPTIMAL else min(max(lower_s, 0.0), value_s)
    return Chosen(status=status, choice=choice, value_s=value_s, lower_s=lower_s)


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
            (_option(name, i), float(use) / max(limit.capacity, 1e-300))
            for name, uses in limit.uses.items()
            for i, use in enumerate(uses)
        ]
        most = 1.0 if limit.capacity > 0 else 0.0
        model.require(limit.name, terms, at_most=most)
    for number, pair in enumerate(graph.apart):
        terms = [(_option(*pair.first), 1.0), (_option(*pair.second), 1.0)]
        model.require(f"apart {number}", terms, at_most=1.0)
    return model


def _add_edge(model: Milp, name: str, edge: Edge, scale: float) -> None:
    if not edge.costs_s.any():
        return
    rows, columns = edge.costs_s.shape
    pair = {
        (i, j): model.continuous(
            f"{name}: {i} and {j}", cost=float(edge.costs_s[i, j]) * scale, upper=1.0
        )
        for i in range(rows)
        for j in range(columns)
    }
    for i in range(rows):
        terms = [(pair[i, j], 1.0) for j in range(columns)]
        terms.append((_option(edge.source, i), -1.0))
        model.require(f"{name}, source option {i}", terms, equals=0.0)
    for j in range(columns):
        terms = [(pair[i, j], 1.0) for i in range(rows)]
        terms.append((_option(edge.target, j), -1.0))
        model.require(f"{name}, target option {j}", terms, equals=0.0)


def _scale(graph: ChoiceGraph) -> float:
    tables = [*graph.nodes.values(), *(edge.costs_s for edge in graph.edges)]
    most = max((float(table.max(initial=0.0)) for table in tables), default=0.0)
    return LARGEST_COST / most if most > 0 else 1.0


def _option(name: str, index: int) -> str:
    return f"{name} takes {index}"
