"""`plan --from FILE`: what a present configuration costs, and what the plan buys.

The way from the one to the other is that of `plan --diff`. Communication that the
present software settings expose, and the plan's hide, is a change of its own, the
first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from costmodel.formats import Present
from costmodel.report import layout_words
from planner.analysis.diff import (
    Change,
    Difference,
    difference,
    difference_document,
    difference_view,
)
from planner.problem import Problem, Solution
from profiles.files import shown
from profiles.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group

SOFTWARE: Final = "overlap and buckets"
SAME: Final = 0.005  # shares of a step that are no difference


def to_plan(present: Present, problem: Problem, solution: Solution) -> Difference:
    """What changes from the present layout to the plan's, priced change by change."""
    best = solution.best
    assert best is not None, "who has no layout says why instead"
    now, then = present.pricing.estimate, best.estimate
    found = difference(problem.job, problem.machine, now.layout, then.layout)
    if found.a.step_time_s == now.step_time_s:
        return found
    settings = Change(
        dimensions=(SOFTWARE,),
        before=now,
        after=found.a,
        words=(_settings(present), "as planned"),
    )
    return replace(found, a=now, changes=(settings, *found.changes))


def _settings(present: Present) -> str:
    options = present.pricing.origin.options
    told = []
    if options.overlap is not None:
        told.append(f"overlap {options.overlap}")
    if options.bucket_mb is not None:
        told.append(f"buckets of {options.bucket_mb:g} MB")
    return ", ".join(told) or "as the file has them"


def present_document(present: Present, found: Difference) -> dict[str, Any]:
    """The members `from` and `improvement` of the plan's document."""
    told = difference_document(found, (present.file, present.file))
    return {
        "from": {**present.document(), **told["a"]},
        "improvement": {
            "changes": told["changes"],
            "step_time_s": told["step_time_s"],
            "peak_memory_bytes": told["peak_memory_bytes"],
            "speedup": found.a.step_time_s / found.b.step_time_s,
        },
    }


def present_lines(present: Present, found: Difference) -> tuple[tuple[str, str], ...]:
    """Of the present configuration, and what the plan is beside it."""
    now, then = found.a, found.b
    fits = "fits" if now.fits else "does not fit"
    words = (
        f"{layout_words(now.layout)}: {format_seconds(now.step_time_s)}, "
        f"{format_bytes(now.peak_memory_bytes)} ({fits}, "
        f"probability {now.probability_fits:.0%})"
    )
    gain = now.step_time_s / then.step_time_s - 1
    if gain > SAME:
        verdict = f"the plan does {gain:.1%} more in the same time"
        verdict += "" if now.fits else ", and fits"
    elif not now.fits:
        verdict = "the plan fits, and the present configuration does not"
    elif gain < -SAME:
        verdict = (
            f"the present configuration is {-gain:.1%} faster: it fits by its "
            f"estimate, with a probability of {now.probability_fits:.0%}, or has what "
            "was not searched"
        )
    else:
        verdict = "the present configuration is as good as the plan"
    return ((f"from {shown(present.file.name)}", words), ("plan beside it", verdict))


def present_view(found: Difference) -> Group:
    """The way from the present layout, A, to the plan's, B."""
    return difference_view(found)
