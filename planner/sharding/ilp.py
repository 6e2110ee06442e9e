"""The integer program that solves a `ChoiceGraph`, after Alpa; PuLP solves it.

    s_v ∈ {0, 1}^k_v    one option of each node
    e_vu ≥ 0            one pair of options of each edge
    Σ_j e_vu[i, j] = s_v[i]     its rows are the source's options
    Σ_i e_vu[i, j] = s_u[j]     its columns the target's

(Zheng et al., OSDI 2022, section 4.2, with equalities where Alpa has inequalities and
Σ e = 1: the same integer solutions, and on a tree no fraction left to branch on, so
that e may be continuous.) Options that an edge cannot tell apart share its pairs.
Costs are scaled: HiGHS takes a microsecond for nothing.

HiGHS through `highspy`, or the CBC that PuLP brings where HiGHS is missing. What a
solver says is not believed: a choice counts only if it keeps the graph's own limits,
and a solver that fails or runs out of time is a status, not a crash.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from planner.sharding.choice_graph import Choice, ChoiceGraph, Chosen, Edge, Status

if TYPE_CHECKING:
    from types import ModuleType

TIME_LIMIT_S: Final = 60.0
# The largest cost becomes this many units, above HiGHS's absolute tolerances of 1e-7.
LARGEST_COST: Final = 1e4
Picks = dict[str, list[Any]]  # the binary variables of each node's options


def solve_choice(graph: ChoiceGraph, *, time_limit_s: float = TIME_LIMIT_S) -> Chosen:
    """The cheapest choice, proven; or the best that *time_limit_s* allows."""
    try:
        import pulp
    except ImportError as error:
        return _none(f"{error}; pip install pulp highspy brings the solver")
    small = graph.merged
    scale = _scale(small)
    try:
        with warnings.catch_warnings():  # 3.3 announces the words of 4.0
            warnings.simplefilter("ignore", DeprecationWarning)
            program, picks = _program(pulp, small, scale)
            program.solve(_solver(pulp, time_limit_s))
    except Exception as error:  # whatever a foreign solver throws
        return _none(f"{type(error).__name__}: {error}")
    if program.status == pulp.LpStatusInfeasible:
        return _none("", Status.INFEASIBLE)
    chosen = {name: _picked(options) for name, options in picks.items()}
    choice = {name: one for name, one in chosen.items() if one is not None}
    if len(choice) < len(chosen):
        return _none("no solution before it stopped")
    proven = program.sol_status == pulp.LpSolutionOptimal
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    return certified(graph, choice, status, _bound(program) / scale)


def certified(
    graph: ChoiceGraph, merged_choice: Choice, status: Status, lower: float
) -> Chosen:
    """A choice priced by the graph itself, whatever its solver says it costs."""
    choice = graph.spelled_out(merged_choice)
    broken = graph.breaks(choice)
    if broken:
        return _none(f"the solver's choice breaks {', '.join(broken)}")
    value = graph.value(choice)
    lower = value if status is Status.OPTIMAL else min(max(lower, 0.0), value)
    return Chosen(status=status, choice=choice, value=value, lower=lower)


def _none(reason: str, status: Status = Status.FAILED) -> Chosen:
    return Chosen(status=status, choice={}, value=inf, lower=0.0, reason=reason)


def _program(pulp: ModuleType, graph: ChoiceGraph, scale: float) -> tuple[Any, Picks]:
    """The program; names are numbers."""
    program = pulp.LpProblem("program", pulp.LpMinimize)
    picks: Picks = {
        name: [_variable(pulp, f"s{node}_{i}", whole=True) for i in range(len(costs))]
        for node, (name, costs) in enumerate(graph.nodes.items())
    }
    objective = [
        (pick, float(cost) * scale)
        for name, costs in graph.nodes.items()
        for pick, cost in zip(picks[name], costs, strict=True)
    ]
    for options in picks.values():
        program += pulp.lpSum(options) == 1
    for number, edge in enumerate(graph.edges):
        objective += _add_edge(pulp, program, f"e{number}", edge, picks, scale)
    for limit in graph.limits:
        terms = [
            (picks[name][i], float(use) / (limit.capacity or 1.0))
            for name, uses in limit.uses.items()
            for i, use in enumerate(uses)
        ]
        program += pulp.LpAffineExpression(terms) <= (1.0 if limit.capacity else 0.0)
    for pair in graph.apart:
        (one, i), (other, j) = pair.first, pair.second
        program += picks[one][i] + picks[other][j] <= 1
    program.setObjective(pulp.LpAffineExpression(objective))
    return program, picks


def _add_edge(
    pulp: ModuleType, program: Any, name: str, edge: Edge, picks: Picks, scale: float
) -> list[tuple[Any, float]]:
    """The pairs of an edge, between classes of options whose costs are alike; what
    they cost."""
    if not edge.costs.any():
        return []
    rows, of_row = np.unique(edge.costs, axis=0, return_inverse=True)
    table, of_column = np.unique(rows, axis=1, return_inverse=True)
    pairs = [
        [_variable(pulp, f"{name}_{i}_{j}") for j in range(table.shape[1])]
        for i in range(table.shape[0])
    ]
    columns = list(map(list, zip(*pairs, strict=True)))
    for options, of, lines in (
        (picks[edge.source], of_row.ravel(), pairs),
        (picks[edge.target], of_column.ravel(), columns),
    ):
        for number, line in enumerate(lines):
            alike = [options[int(i)] for i in np.flatnonzero(of == number)]
            program += pulp.lpSum(line) == pulp.lpSum(alike)
    flat = (pair for line in pairs for pair in line)
    return list(zip(flat, (table * scale).ravel().tolist(), strict=True))


def _variable(pulp: ModuleType, name: str, *, whole: bool = False) -> Any:
    kind = pulp.LpInteger if whole else pulp.LpContinuous
    return pulp.LpVariable(name, 0, 1, kind)


def _picked(options: Sequence[Any]) -> int | None:
    """The one option that a solver took; None where it took none, or several."""
    values = [one.varValue or 0.0 for one in options]
    taken = [place for place, value in enumerate(values) if value > 0.5]
    return taken[0] if len(taken) == 1 else None


def _scale(graph: ChoiceGraph) -> float:
    tables = [*graph.nodes.values(), *(edge.costs for edge in graph.edges)]
    most = max((float(table.max(initial=0.0)) for table in tables), default=0.0)
    return LARGEST_COST / most if most > 0 else 1.0


def _solver(pulp: ModuleType, time_limit_s: float) -> Any:
    """HiGHS, or CBC; one thread, so that answers repeat, and no gap left."""
    highs = pulp.HiGHS(
        msg=False, threads=1, timeLimit=time_limit_s, gapRel=0.0, gapAbs=1e-9
    )
    if highs.available():
        return highs
    return pulp.PULP_CBC_CMD(msg=False, threads=1, timeLimit=time_limit_s, gapRel=0.0)


def _bound(program: Any) -> float:
    """The dual bound that HiGHS reached; −∞ where the solver does not say."""
    try:
        return float(program.solverModel.getInfo().mip_dual_bound)
    except AttributeError:
        return -inf
