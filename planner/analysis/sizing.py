"""`--tokens 300B --days 30` and `--budget USD`: how many GPUs?

Numbers of GPUs are tried node by node: doubled until one is enough, then halved between
it and the last that was not. Time falls with more GPUs and cost rises, save where a
number divides badly: what is said is the best of the numbers tried, all of them named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from costmodel.options import RunOptions
from costmodel.training_run import whole_run
from planner.analysis.scaling import Sized, plans
from planner.problem import Posed, Problem, Solution
from planner.search import Limits
from profiles.errors import Contradiction, Infeasible, Unsupported
from profiles.hardware import Cluster
from profiles.units import format_count

MOST_GPUS: Final = 131_072
HALVINGS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The tokens of *run* in so many *days*, for so many dollars; None: no limit."""

    run: RunOptions
    days: float | None
    budget: float | None

    @property
    def words(self) -> str:
        limits = [] if self.days is None else [f"within {self.days:g} days"]
        limits += [] if self.budget is None else [f"for {self.budget:,.0f} dollars"]
        return f"{format_count(self.run.tokens or 0.0)} tokens {' and '.join(limits)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A number of GPUs with its best plan's days and dollars (None: no price)."""

    gpus: int
    days: float
    dollars: float | None

    def within(self, wanted: Wanted) -> bool:
        return self.soon(wanted) and self.affordable(wanted)

    def soon(self, wanted: Wanted) -> bool:
        return wanted.days is None or self.days <= wanted.days

    def affordable(self, wanted: Wanted) -> bool:
        return wanted.budget is None or (self.dollars or 0.0) <= wanted.budget


@dataclass(kw_only=True)
class Sizing:
    """The search for a number of GPUs on *cluster*."""

    wanted: Wanted
    cluster: Cluster
    pose: Callable[[int], Posed]
    solve: Callable[[Problem, Limits], Solution]
    limits: Callable[[], Limits]
    tried: dict[int, Tried | None] = field(default_factory=dict)
    reason: str | None = None  # that the last number without a plan has none

    def best(self) -> Tried:
        """The fewest GPUs that are soon enough; without days, the most that the budget
        pays.

        Raises Infeasible where there is no such number, Unsupported without a price.
        """
        self._require_price()
        counts = list(self._doubled())
        if self.wanted.days is not None:
            few, enough = self._first(counts, self._is_soon)
            found = self._between(few, enough, self._is_soon)
        else:
            few, over = self._first(counts, self._is_over)
            self._between(few, over, self._is_over)
            priced = [gpus for gpus, one in self.tried.items() if one is not None]
            found = max((n for n in priced if not self._is_over(n)), default=None)
        answer = None if found is None else self.tried[found]
        if answer is None or not answer.within(self.wanted):
            raise self._infeasible()
        return answer

    def document(self, found: Tried) -> dict[str, Any]:
        """The member `sizing` of the document."""
        return {
            "tokens": self.wanted.run.tokens,
            "days": self.wanted.days,
            "budget": self.wanted.budget,
            "gpus": found.gpus,
            "tried": [
                {
                    "gpus": gpus,
                    "days": one and one.days,
                    "dollars": one and one.dollars,
                }
                for gpus, one in sorted(self.tried.items())
            ],
        }

    def words(self, found: Tried) -> str:
        which = "fewest" if self.wanted.days is not None else "most"
        cost = "" if found.dollars is None else f", {found.dollars:,.0f} dollars"
        tried = ", ".join(f"{gpus:,}" for gpus in sorted(self.tried))
        return (
            f"{found.gpus:,} GPUs, the {which} of those tried ({tried}) that train "
            f"{self.wanted.words}: {found.days:,.1f} days{cost}"
        )

    def _doubled(self) -> Iterator[int]:
        """One GPU, and on in powers of two up to a node; nodes doubled after that."""
        node = self.cluster.island.devices_per_node
        most = min(self.cluster.gpus or MOST_GPUS, MOST_GPUS)
        gpus = 1
        while gpus < min(node, most):
            yield gpus
            gpus *= 2
        gpus = min(node, most)
        while gpus < most:
            yield gpus
            gpus *= 2
        yield most

    def _first(
        self, counts: list[int], reached: Callable[[int], bool]
    ) -> tuple[int, int | None]:
        """(the last of *counts* before the first that *reached*, and that one)."""
        before = 0
        for gpus in counts:
            if reached(gpus):
                return before, gpus
            before = gpus
        return before, None

    def _between(
        self, few: int, enough: int | None, reached: Callable[[int], bool]
    ) -> int | None:
        """The least number found between the two that *reached*, whole nodes."""
        node = self.cluster.island.devices_per_node
        for _ in range(HALVINGS):
            if enough is None or enough - few <= node:
                break
            middle = (few + enough) // 2 // node * node or node
            if middle in (few, enough):
                break
            if reached(middle):
                enough = middle
            else:
                few = middle
        return enough

    def _is_soon(self, gpus: int) -> bool:
        found = self._at(gpus)
        return found is not None and found.soon(self.wanted)

    def _is_over(self, gpus: int) -> bool:
        """Whether it costs too much; what does not fit is no reason to stop."""
        found = self._at(gpus)
        return found is not None and not found.affordable(self.wanted)

    def _at(self, gpus: int) -> Tried | None:
        if gpus not in self.tried:
            (row,) = plans([gpus], self.pose, self.solve, self.limits)
            self.tried[gpus] = self._tried(row)
        return self.tried[gpus]

    def _tried(self, row: Sized) -> Tried | None:
        if row.estimate is None:
            self.reason = row.reason
            return None
        whole = whole_run(row.estimate, self.wanted.run)
        if whole["days"] is None:
            self.reason = "failures leave no time to train"
            return None
        return Tried(gpus=row.gpus, days=whole["days"], dollars=whole["dollars"])

    def _require_price(self) -> None:
        island = self.cluster.island
        if self.wanted.budget is not None and island.device_dollars_per_h is None:
            raise Unsupported(
                f"--budget: no price is known for {island.device.name}; give its "
                "`cost`, or the `price` of a node, in USD/h in a cluster file"
            )

    def _infeasible(self) -> Infeasible:
        known = [one for one in self.tried.values() if one is not None]
        if not known:
            tried = ", ".join(map(str, sorted(self.tried)))
            return Infeasible(
                f"no plan for any number of GPUs tried ({tried}); the last: "
                f"{self.reason}",
                constraint="layouts",
                nearest=None,
            )
        fastest = min(known, key=lambda one: one.days)
        dollars = [one for one in known if one.dollars is not None]
        cheapest = min(dollars, key=lambda one: one.dollars or 0.0, default=None)
        parts = []
        if self.wanted.days is not None:
            parts.append(f"fastest: --gpus {fastest.gpus}, {fastest.days:,.3g} days")
        if cheapest is not None and self.wanted.budget is not None:
            cost = f"{cheapest.dollars:,.0f} dollars"
            parts.append(f"cheapest: --gpus {cheapest.gpus}, {cost}")
        said = "; ".join(parts)
        return Infeasible(
            f"no number of GPUs tried trains {self.wanted.words}; {said}",
            constraint="time" if self.wanted.budget is None else "budget",
            nearest=said,
        )


def wanted_of(
    run: RunOptions, days: float | None, budget: float | None
) -> Wanted | None:
    """What was asked of a size; raises Contradiction without tokens."""
    if days is None and budget is None:
        return None
    if run.tokens is None:
        flag = "--days" if days is not None else "--budget"
        raise Contradiction(f"{flag} is of a whole run; give its --tokens too")
    return Wanted(run=run, days=days, budget=budget)
