"""`Milp`: a mixed-integer program with named variables and rows; PuLP solves it.

The only room that knows a solver: HiGHS through `highspy`, or the CBC that PuLP brings
where HiGHS is missing. What a solver says is not believed: a solution counts only if it
keeps every row, and a solver that fails or runs out of time is a status, not a crash.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

# A row may be missed by this, relative to its largest term: HiGHS's own tolerance.
ROW_TOLERANCE = 1e-6
TIME_LIMIT_S = 60.0


class MilpStatus(StrEnum):
    """What is known of a program after a solver looked at it."""

    OPTIMAL = "optimal"  # no solution is better
    FEASIBLE = "feasible"  # time ran out: a solution, and a bound
    INFEASIBLE = "infeasible"  # there is none
    FAILED = "failed"  # the solver gave up without one


@dataclass(frozen=True, slots=True, kw_only=True)
class MilpSolution:
    """The values of all variables by name (none if there is no solution).

    `bound` is a value that no solution's goes below.
    """

    status: MilpStatus
    value: float
    bound: float
    values: Mapping[str, float]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variable:
    cost: float
    upper: float
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    terms: tuple[tuple[str, float], ...]
    lower: float
    upper: float


@dataclass(slots=True, kw_only=True)
class Milp:
    """Minimise a linear cost over variables of at least 0, subject to named rows.

    >>> model = Milp(name="knapsack")
    >>> first, second = (model.binary(n, cost=-c) for n, c in (("a", 3.0), ("b", 2.0)))
    >>> model.require("room for one", [(first, 1.0), (second, 1.0)], at_most=1.0)
    >>> model.solve().value
    -3.0
    """

    name: str
    _variables: dict[str, _Variable] = field(default_factory=dict)
    _rows: dict[str, _Row] = field(default_factory=dict)

    def binary(self, name: str, *, cost: float = 0.0) -> str:
        """A variable that is 0 or 1; its name, for rows."""
        return self._add(name, _Variable(cost=cost, upper=1.0, whole=True))

    def continuous(self, name: str, *, cost: float = 0.0, upper: float = inf) -> str:
        """A variable between 0 and *upper*; its name, for rows."""
        return self._add(name, _Variable(cost=cost, upper=upper, whole=False))

    def require(
        self,
        name: str,
        terms: Iterable[tuple[str, float]],
        *,
        at_least: float = -inf,
        at_most: float = inf,
        equals: float | None = None,
    ) -> None:
        """The row *name*: the sum of coefficient × variable lies in this range."""
        assert name not in self._rows, f"there is a row {name!r} already"
        if equals is not None:
            at_least = at_most = equals
        self._rows[name] = _Row(terms=tuple(terms), lower=at_least, upper=at_most)

    def solve(self, *, time_limit_s: float = TIME_LIMIT_S) -> MilpSolution:
        """Minimise; never raises for what a solver does."""
        try:
            import pulp
        except ImportError as error:
            what = f"{error}; pip install pulp highspy brings the solver"
            return _nothing(MilpStatus.FAILED, what)
        try:
            with warnings.catch_warnings():  # 3.3 announces the words of 4.0
                warnings.simplefilter("ignore", DeprecationWarning)
                program, variables = self._program(pulp)
                program.solve(_solver(pulp, time_limit_s))
        except Exception as error:  # whatever a foreign solver throws
            return _nothing(MilpStatus.FAILED, f"{type(error).__name__}: {error}")
        if program.status == pulp.LpStatusInfeasible:
            return _nothing(MilpStatus.INFEASIBLE, "")
        values = self._values(variables)
        if values is None or self.broken(values):
            return _nothing(MilpStatus.FAILED, "no solution before it stopped")
        value = sum(one.cost * values[name] for name, one in self._variables.items())
        proven = program.sol_status == pulp.LpSolutionOptimal
        return MilpSolution(
            status=MilpStatus.OPTIMAL if proven else MilpStatus.FEASIBLE,
            value=value,
            bound=value if proven else min(_bound(program), value),
            values=values,
        )

    def broken(self, values: Mapping[str, float]) -> list[str]:
        """The names of the rows that *values* do not keep."""
        found = []
        for name, row in self._rows.items():
            parts = [factor * values[one] for one, factor in row.terms]
            slack = ROW_TOLERANCE * max(1.0, *map(abs, parts)) if parts else 0.0
            if not row.lower - slack <= sum(parts) <= row.upper + slack:
                found.append(name)
        return found

    def _add(self, name: str, variable: _Variable) -> str:
        assert name not in self._variables, f"there is a variable {name!r} already"
        self._variables[name] = variable
        return name

    def _program(self, pulp: ModuleType) -> tuple[Any, dict[str, Any]]:
        """The program in PuLP's words; its names there are numbers."""
        variables = {
            name: pulp.LpVariable(
                f"x{index}",
                0,
                None if one.upper == inf else one.upper,
                pulp.LpInteger if one.whole else pulp.LpContinuous,
            )
            for index, (name, one) in enumerate(self._variables.items())
        }
        program = pulp.LpProblem("program", pulp.LpMinimize)
        program.setObjective(
            pulp.LpAffineExpression(
                [(variables[name], one.cost) for name, one in self._variables.items()]
            )
        )
        for index, row in enumerate(self._rows.values()):
            terms = [(variables[name], factor) for name, factor in row.terms]
            _add_row(pulp, program, f"r{index}", terms, row)
        return program, variables

    def _values(self, variables: Mapping[str, Any]) -> dict[str, float] | None:
        """Every variable's value, whole ones rounded; None if one is missing."""
        found = {}
        for name, one in self._variables.items():
            value = variables[name].varValue
            if value is None or abs(value) == inf:
                return None
            found[name] = float(round(value)) if one.whole else float(value)
        return found


def _add_row(
    pulp: ModuleType, program: Any, name: str, terms: list[Any], row: _Row
) -> None:
    if row.lower == row.upper:
        sides = [(pulp.LpConstraintEQ, row.lower)]
    else:
        sides = [
            (sense, limit)
            for sense, limit in (
                (pulp.LpConstraintGE, row.lower),
                (pulp.LpConstraintLE, row.upper),
            )
            if abs(limit) != inf
        ]
    for sense, limit in sides:
        expression = pulp.LpAffineExpression(terms)
        program.addConstraint(
            pulp.LpConstraint(expression, sense, f"{name}_{sense}", limit)
        )


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


def _nothing(status: MilpStatus, reason: str) -> MilpSolution:
    return MilpSolution(status=status, value=inf, bound=-inf, values={}, reason=reason)
