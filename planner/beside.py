"""`Beside`: what the questions around a plan add to what is shown of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from costmodel.report.whole_run import training_rows
from costmodel.uniform import Uniform
from costmodel.whole_run import training
from planner.around import Around
from planner.problem import Problem
from planner.search import Clock, Limits
from planner.solution import Solution
from profiles.errors import Contradiction, Infeasible, OutOfTime

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.largest import Largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Lines of the headline, members of the JSON document, and tables to be made."""

    lines: tuple[tuple[str, str], ...] = ()
    members: dict[str, Any] = field(default_factory=dict)
    tables: tuple[Callable[[], RenderableType], ...] = ()

    def __add__(self, other: Beside) -> Beside:
        return Beside(
            lines=self.lines + other.lines,
            members={**self.members, **other.members},
            tables=self.tables + other.tables,
        )


def require_answerable(problem: Problem, around: Around, *, any_stage: bool) -> None:
    """Raise Unsupported or Contradiction before the search for what could not be said
    after it."""
    if around.shardings and any_stage:
        raise Contradiction(
            "--shardings is about one mesh, and with --any-stage stages may have "
            "several; leave one of them out"
        )
    if around.shardings:
        from planner.shardings import layout_block

        layout_block(problem, Uniform())


def beside(
    problem: Problem,
    solution: Solution,
    around: Around,
    largest: Largest | None,
    solve: Callable[[Problem], Solution],
    limits: Limits,
) -> Beside:
    """What was asked around the plan, but for files; what is of this plan alone, within
    its *limits*."""
    best, found = solution.best, Beside()
    if best is None:
        return found
    if largest is not None:
        found += Beside(
            lines=(("largest", largest.words),),
            members={"maximized": largest.document()},
        )
    if around.tokens is not None:
        whole = training(best.estimate, around.tokens)
        found += Beside(lines=training_rows(whole), members={"training": whole})
    if around.explain:
        found += _sensitivities(problem, solution, solve)
    if around.shardings:
        found += _sharded(problem, best.choice, Clock(limits=limits))
    return found


def _sensitivities(
    problem: Problem, solution: Solution, solve: Callable[[Problem], Solution]
) -> Beside:
    from planner.sensitivity import sensitivities
    from planner.sensitivity_report import sensitivities_table, sensitivity_document

    rows = list(sensitivities(problem, solution, solve))
    return Beside(
        members={"sensitivities": [sensitivity_document(row) for row in rows]},
        tables=(lambda: sensitivities_table(rows),),
    )


def _sharded(problem: Problem, choice: Uniform, clock: Clock) -> Beside:
    from planner.choice_cache import cache_folder
    from planner.shardings import layout_shardings, shardings_document
    from planner.shardings_view import shardings_view

    try:
        found = layout_shardings(problem, choice, cache_folder(), clock)
    except (OutOfTime, Infeasible):
        if not clock.over:
            raise
        late = "none: time was over before one was found (--time-limit)"
        return Beside(lines=(("shardings", late),), members={"shardings": None})
    return Beside(
        members={"shardings": shardings_document(found)},
        tables=(lambda: shardings_view(found),),
    )
