"""`Milp`: a mixed-integer program with named variables and rows; SciPy solves it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

LARGEST_COST = 1e4  # HiGHS stops within an absolute 1e-6 of the least


@dataclass(frozen=True, slots=True, kw_only=True)
class MilpSolution:
    """The values of all variables by name; none if there is no solution."""

    value: float
    values: Mapping[str, float]


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
    _variables: dict[str, tuple[float, float, bool]] = field(default_factory=dict)
    _rows: dict[str, tuple[dict[str, float], float, float]] = field(
        default_factory=dict
    )

    def binary(self, name: str, *, cost: float = 0.0) -> str:
        """A variable that is 0 or 1; its name, for rows."""
        return self._add(name, cost, 1.0, whole=True)

    def continuous(self, name: str, *, cost: float = 0.0, upper: float = inf) -> str:
        """A variable between 0 and *upper*; its name, for rows."""
        return self._add(name, cost, upper, whole=False)

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
        summed: dict[str, float] = {}
        for one, factor in terms:
            summed[one] = summed.get(one, 0.0) + factor
        self._rows[name] = (summed, at_least, at_most)

    def solve(self) -> MilpSolution:
        """The least cost."""
        place = {name: number for number, name in enumerate(self._variables)}
        costs, uppers, whole = map(
            np.array, zip(*self._variables.values(), strict=True)
        )
        rows = np.zeros((len(self._rows), len(place)))
        for row, (terms, _, _) in zip(rows, self._rows.values(), strict=True):
            for name, factor in terms.items():
                row[place[name]] = factor
        _, lowers, mosts = zip(*self._rows.values(), strict=True)
        most = np.abs(costs).max(initial=0.0) or 1.0
        found = milp(
            costs * (LARGEST_COST / most),
            integrality=whole.astype(int),
            bounds=Bounds(0.0, uppers),
            constraints=LinearConstraint(rows, lowers, mosts),
            options={"mip_rel_gap": 0.0},
        )
        if found.x is None:
            return MilpSolution(value=inf, values={})
        values = np.where(whole, np.round(found.x), found.x)
        return MilpSolution(
            value=float(costs @ values),
            values=dict(zip(place, values.tolist(), strict=True)),
        )

    def _add(self, name: str, cost: float, upper: float, *, whole: bool) -> str:
        assert name not in self._variables, f"there is a variable {name!r} already"
        self._variables[name] = (cost, upper, whole)
        return name
