"""`AbstractSearch`: what every search takes and gives; limits and progress."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import ClassVar

from planner.problem import Problem
from planner.solution import Solution
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
    """How long to look, how many runners-up to name, and who watches."""

    time_limit_s: float = inf
    runners_up: int = 5
    watch: Callable[[Progress], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The time since a search began."""

    limits: Limits
    started_s: float = field(default_factory=perf_counter)

    @property
    def seconds(self) -> float:
        return perf_counter() - self.started_s

    @property
    def share(self) -> float:
        """Of the time there is that has passed."""
        limit_s = self.limits.time_limit_s
        return self.seconds / limit_s if limit_s > 0 else inf

    @property
    def over(self) -> bool:
        return self.seconds >= self.limits.time_limit_s

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
