"""`Planning`: how the problems of one command line are posed, searched and improved.

What it imports is there before the time of a plan begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from costmodel.options import Pins
from planner.analysis import looked_for
from planner.api import improved, solve
from planner.options import Wish
from planner.problem import (
    MOST_LAYERS,
    Asked,
    Posed,
    Problem,
    Solution,
    only_unlike,
    too_deep,
)
from planner.queries import wanted_runners_up
from planner.report import metered
from planner.search import Limits, search_called
from profiles.commandline import warn
from profiles.errors import InvalidQuestion, OutOfTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """What was *asked*, the *pins* as they were given, and the rest of the wish;
    *implied* is what other options stand for."""

    asked: Asked
    pins: Pins
    wish: Wish
    implied: Mapping[str, Any] = field(default_factory=dict)

    def limits(self) -> Limits:
        """Those of one plan, whose time begins now."""
        wanted = looked_for(wanted_runners_up(self.wish))
        return limits_from_now(self.wish.time_limit, wanted)

    def posed(self, gpus: int) -> Posed:
        """The same question on another number of GPUs."""
        found = self.asked.pose(gpus=gpus)
        self.require_stages(found.problem)
        return found

    def at_batch(self, global_batch: int) -> Solution | None:
        """The answer to the same question with another batch; None where none is
        found."""
        try:
            posed = self.asked.pose(global_batch=global_batch)
            return self.solved(posed.problem)
        except (InvalidQuestion, OutOfTime):
            return None

    def require_stages(self, problem: Problem) -> None:
        """Raise where stages cannot differ, if they are asked to."""
        if self.wish.any_stage:
            from planner.heterogeneous import require_possible

            require_possible(problem)

    def searched(self, problem: Problem, limits: Limits) -> Solution:
        """What the search that was asked for finds."""
        return searched(problem, self.wish.search, limits)

    def improved(self, problem: Problem, found: Solution, limits: Limits) -> Solution:
        """*found*, or what is better and no search looks at."""
        if self.wish.any_stage:
            _warn_of_alike(problem)
        wanted = wanted_runners_up(self.wish)
        return improved(problem, found, self.pins, limits, wanted)

    def solved(self, problem: Problem, limits: Limits | None = None) -> Solution:
        """The improved answer to one of several problems."""
        limits = limits or self.limits()
        found = self.improved(problem, self.searched(problem, limits), limits)
        problem.forget()  # one of several
        return found


def limits_from_now(time_limit_s: float | None, runners_up: int) -> Limits:
    """What is imported later, or read, is part of the time."""
    limit = inf if time_limit_s is None else time_limit_s
    return Limits(time_limit_s=limit, runners_up=runners_up).begun()


def searched(problem: Problem, search: str, limits: Limits) -> Solution:
    """What the search called *search* finds; progress is shown."""
    with metered(problem.objective.quantity) as meter:
        return solve(problem, search_called(search), replace(limits, watch=meter))


def _warn_of_alike(problem: Problem) -> None:
    """Say where stages do not differ though they may."""
    from planner.heterogeneous import alike_alone

    if too_deep(problem) and not only_unlike(problem):
        warn(
            f"--any-stage: {problem.job.graph.body:,} layers are more than the "
            f"{MOST_LAYERS} allowed with heterogeneous stages; stages are uniform"
        )
    if pinned := alike_alone(problem):
        warn(
            f"--any-stage beside {', '.join(pinned)}: heterogeneous stages run 1F1B "
            "of any layers; stages are uniform"
        )
