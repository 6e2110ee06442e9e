"""`AbstractSearch`: what every search takes and gives; limits and progress."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter
from typing import ClassVar

from planner.problem import Problem, Solution
from profiles.errors import OutOfTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a search is: the best value so far, and what none goes below."""

    simulated: int
    value: float
    lower: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long to look, how many runners-up to name, and who watches.

    The time there is counts from `began_s`, so that all steps of a plan share it; from
    the start of each search where that is None.
    """

    time_limit_s: float = inf
    runners_up: int = 5
    watch: Callable[[Progress], None] | None = None
    began_s: float | None = None

    def begun(self) -> Limits:
        """The same, its time counting from now."""
        return replace(self, began_s=perf_counter())


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The time since a search began, and what is left of that there is."""

    limits: Limits
    started_s: float = field(default_factory=lambda: perf_counter())

    @property
    def seconds(self) -> float:
        return perf_counter() - self.started_s

    @property
    def share(self) -> float:
        """Of the time there is that has passed."""
        limit_s = self.limits.time_limit_s
        return self._passed_s / limit_s if limit_s > 0 else inf

    @property
    def shared(self) -> Limits:
        """The limits of what counts on the same time."""
        began_s = self.limits.began_s
        since_s = self.started_s if began_s is None else began_s
        return replace(self.limits, began_s=since_s)

    @property
    def over(self) -> bool:
        return self._passed_s >= self.limits.time_limit_s

    @property
    def left_s(self) -> float:
        """What is left of the time there is."""
        return max(self.limits.time_limit_s - self._passed_s, 0.0)

    @property
    def _passed_s(self) -> float:
        began_s = self.limits.began_s
        return perf_counter() - (self.started_s if began_s is None else began_s)

    def require(self, considered: int = 0) -> None:
        """Raise OutOfTime where none is left: for steps before anything is found."""
        if self.over:
            raise self.out_of_time(considered)

    def tell(self, simulated: int, value: float, lower: float) -> None:
        """Show whoever watches where the search is."""
        if self.limits.watch is not None:
            self.limits.watch(
                Progress(
                    simulated=simulated,
                    value=value,
                    lower=lower,
                    seconds=self.seconds,
                )
            )

    def out_of_time(self, considered: int) -> OutOfTime:
        which = f"any of the {considered:,} layouts" if considered else "any layout"
        return OutOfTime(
            f"{self.limits.time_limit_s:g} s passed before {which} was found to fit; "
            "give --time-limit more, or pin a degree"
        )


class AbstractSearch(ABC):
    """Chooses a candidate of a problem. Subclasses are final."""

    name: ClassVar[str]

    @abstractmethod
    def solve(self, problem: Problem, limits: Limits) -> Solution:
        """The best candidate found within *limits*, and how good it is known to be.

        Raises OutOfTime if time passes before any candidate was found to fit.
        """
