"""`Beside`: what the questions around a plan add to what is shown of it.

What was written to be measured: lines, and members of the JSON document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.layout import Uniform
from costmodel.machine import Calibration
from costmodel.report import calibration_view
from costmodel.training_run import Ramped, training, training_rows
from planner.analysis import doubt, parse_pins, worse
from planner.options import Around
from planner.problem import Candidate, Problem, Solution, short_candidate_words
from planner.search import Clock, Limits
from profiles.errors import Contradiction, Infeasible, OutOfTime

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.analysis import Largest


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


def calibrated(by: Calibration | None) -> Beside:
    """What runs of the user's own changed of the prices."""
    if by is None:
        return Beside()
    return Beside(
        members={"calibration": by.document()},
        tables=(lambda: calibration_view(by),),
    )


def require_answerable(problem: Problem, around: Around, *, any_stage: bool) -> None:
    """Raise Unsupported or Contradiction before the search for what could not be said
    after it."""
    if around.shardings and any_stage:
        raise Contradiction(
            "--shardings is about one mesh, and with --any-stage stages may have "
            "several; leave one of them out"
        )
    for text in around.why_not:
        parse_pins(text, problem.pins)
    if around.shardings:
        from planner.sharding import layout_block

        layout_block(problem, Uniform())


def beside(
    problem: Problem,
    solution: Solution,
    around: Around,
    largest: Largest | None,
    solve: Callable[[Problem], Solution],
    limits: Limits,
    ramped: Ramped | None = None,
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
    if around.run.tokens is not None:
        whole = training(best.estimate, around.run, ramped)
        found += Beside(lines=training_rows(whole), members={"training": whole})
    if around.explain:
        found += _sensitivities(problem, solution, solve)
    if around.shardings:
        found += _sharded(problem, best.choice, Clock(limits=limits))
    return found


def _sensitivities(
    problem: Problem, solution: Solution, solve: Callable[[Problem], Solution]
) -> Beside:
    from planner.analysis import (
        sensitivities,
        sensitivities_table,
        sensitivity_document,
    )

    rows = list(sensitivities(problem, solution, solve))
    return Beside(
        members={"sensitivities": [sensitivity_document(row) for row in rows]},
        tables=(lambda: sensitivities_table(rows),),
    )


def _sharded(problem: Problem, choice: Uniform, clock: Clock) -> Beside:
    from planner.sharding import (
        layout_shardings,
        shardings_document,
        shardings_view,
    )

    try:
        found = layout_shardings(problem, choice, clock)
    except (OutOfTime, Infeasible):
        if not clock.over:
            raise
        late = "none: the time limit was reached before one was found (--time-limit)"
        return Beside(lines=(("shardings", late),), members={"shardings": None})
    return Beside(
        members={"shardings": shardings_document(found)},
        tables=(lambda: shardings_view(found),),
    )


def probes_beside(
    problem: Problem,
    solution: Solution,
    written: Sequence[tuple[Path, Candidate]],
    asked: int,
) -> Beside:
    """One line a file: the layout, how much slower it is, and why it is measured."""
    lines, entries = [], []
    for file, candidate in written:
        why = _why(problem, solution, candidate)
        words = short_candidate_words(candidate, problem.job.global_batch)
        lines.append(("probe", f"{file}: {words} ({why})"))
        summary = candidate.estimate.layout.summary
        entries.append({"file": str(file), "summary": summary, "why": why})
    if len(written) < asked:
        lines.append(("probe", f"no more than these {len(written)} were found"))
    return Beside(lines=tuple(lines), members={"probe": entries})


def _why(problem: Problem, solution: Solution, candidate: Candidate) -> str:
    best = solution.best
    if best is None or candidate is best:
        return "the recommendation"
    slower = worse(problem, best, candidate)
    if abs(slower) <= doubt(problem, best, candidate):
        return f"{slower:+.1%}: indistinguishable by the cost model"
    return f"{slower:+.1%}: another region of the space"
