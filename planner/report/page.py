"""The page of a plan: the layout's own, and what speaks for it and against others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Final

from costmodel.pages import (
    Section,
    chart,
    estimate_sections,
    estimate_series,
    facts,
    labelled,
    rows,
    sentence,
    whole_page,
)
from costmodel.simulation import Estimate
from planner.analysis import binds, doubt, loss, worse
from planner.problem import (
    Candidate,
    Posed,
    Problem,
    Solution,
    candidate_words,
    short_candidate_words,
)
from profiles.errors import MeshwrightError
from profiles.units import HOUR_S, GiB, format_bytes, format_seconds

SHARES: Final = (0.75, 0.5, 0.35, 0.25)  # of the limit, that the front is planned for
Solve = Callable[[Problem], Solution]
Member = Mapping[str, Any]


def plan_page(posed: Posed, solution: Solution, solve: Solve, members: Member) -> str:
    """The page of the best layout of *solution*; *solve* plans for less memory, for the
    front, and *members* are what the document says beside the plan.

    Raises Unsupported where Bokeh is missing.
    """
    problem, best = posed.problem, solution.best
    assert best is not None, "who has no layout says why instead"
    estimate = replace(
        best.estimate, assumed=posed.assumed, warnings=tuple(posed.warnings)
    )
    points = front(problem, solution, solve)
    of_layout = estimate_sections(estimate, problem.machine.cluster)
    sections = [
        of_layout[0],
        _certificate(problem, solution),
        *of_layout[1:5],
        front_section(points),
        alternatives_section(problem, solution),
        *_sensitivities(members.get("sensitivities")),
        *of_layout[5:],
    ]
    capacity = min(best.estimate.capacities_bytes) / GiB
    pareto = {"points": points, "capacity_gib": capacity}
    series = {**estimate_series(estimate), "pareto": pareto}
    title = f"{estimate.job.model} on {estimate.layout.gpus:,} × {estimate.device}"
    lead = f"{_certain(solution)} {sentence(estimate)}"
    return whole_page(title, lead, sections, series)


def _certain(solution: Solution) -> str:
    if solution.gap == 0:
        return "Recommended, and proven best of the space that was searched:"
    if isfinite(solution.lower) and solution.lower > 0:
        return f"Recommended (no layout can be more than {solution.gap:.1%} better):"
    return "Recommended (the best that was found, without a proof):"


def _certificate(problem: Problem, solution: Solution) -> Section:
    counters = solution.counters
    considered = (
        f"{counters.considered:,} considered, {counters.by_memory:,} cannot fit, "
        f"{counters.by_value:,} cannot be better, {counters.simulated:,} simulated"
    )
    pairs = [
        ("bottleneck", binds(problem, solution)),
        ("search", f"{solution.search}, {solution.seconds:.1f} s"),
        ("layouts", considered),
        ("gap to the bound", f"{solution.gap:.2%}, {solution.space} stages"),
    ]
    return Section(name="why", title="Why this layout", html=facts(pairs))


def front(
    problem: Problem, solution: Solution, solve: Solve | None = None
) -> list[dict[str, Any]]:
    """Points of throughput against memory: the recommendation, its runners-up, and the
    fastest layout within less and less memory, as *solve* plans it."""
    best = solution.best
    assert best is not None, "who has no layout has no front"
    found = [("recommended", best)]
    found += [("alternative", one) for one in solution.runners_up]
    if solve is not None:
        found += [("front", one) for one in _within_less(problem, best, solve)]
    points = [_point(role, one) for role, one in found]
    for one in points:
        one["on_front"] = not any(_dominates(other, one) for other in points)
    return points


def _within_less(
    problem: Problem, best: Candidate, solve: Solve
) -> Iterator[Candidate]:
    """The fastest layout within shares of what the recommendation needs."""
    most = min(problem.memory_limit_bytes, best.estimate.peak_secured_bytes)
    for share in SHARES:
        limit = share * most
        try:
            found = solve(replace(problem, memory_limit_bytes=limit)).best
        except MeshwrightError:  # nothing fits in so little, or no time
            return
        if found is None:
            return
        yield found


def _point(role: str, one: Candidate) -> dict[str, Any]:
    estimate = one.estimate
    return {
        "role": role,
        "layout": candidate_words(one, estimate.job.global_batch),
        "gib": estimate.peak_memory_bytes / GiB,
        "tokens": estimate.tokens_per_s_per_gpu,
        "dollars_per_million_tokens": _dollars(estimate),
    }


def _dollars(estimate: Estimate) -> float | None:
    if estimate.device_cost is None:
        return None
    return estimate.device_cost / HOUR_S / estimate.tokens_per_s_per_gpu * 1e6


def _dominates(one: Member, other: Member) -> bool:
    no_worse = one["gib"] <= other["gib"] and one["tokens"] >= other["tokens"]
    return bool(
        no_worse and (one["gib"] < other["gib"] or one["tokens"] > other["tokens"])
    )


def front_section(points: Sequence[Member]) -> Section:
    """The points as a chart and as a table."""
    label = (
        "Throughput against memory: the recommendation, its runners-up and the fastest "
        "layouts within less memory"
    )
    caption = (
        f"{label}. Between the points of the front others may lie; none of the points "
        "shown is better than it in both."
    )
    body = [
        (
            one["role"],
            one["layout"],
            f"{one['gib']:.1f}",
            f"{one['tokens']:,.0f}",
            _cents(one["dollars_per_million_tokens"]),
            "yes" if one["on_front"] else "",
        )
        for one in points
    ]
    heads = ["", "layout", "GiB", "tokens/s per GPU", "$ per M tokens", "on the front"]
    table = labelled("The same as a table, with the cost", rows(heads, body))
    html = chart("pareto", label, caption) + table
    return Section(name="front", title="Throughput, memory and cost", html=html)


def _cents(dollars: float | None) -> str:
    return "unknown" if dollars is None else f"{dollars:.3f}"


def alternatives_section(problem: Problem, solution: Solution) -> Section:
    """The runners-up, and what each loses."""
    best = solution.best
    assert best is not None, "who has no layout has no alternatives"
    body = []
    for one in solution.runners_up:
        slower = worse(problem, best, one)
        within = abs(slower) <= doubt(problem, best, one)
        body.append(
            (
                short_candidate_words(one, one.estimate.job.global_batch),
                format_seconds(one.estimate.step_time_s),
                format_bytes(one.estimate.peak_memory_bytes),
                f"{slower:+.1%}" + (" (indistinguishable)" if within else ""),
                loss(problem, best, one),
            )
        )
    heads = ["layout", "step", "peak memory", "worse by", "why not"]
    html = rows(heads, body, "words") if body else "<p>None was found.</p>"
    return Section(name="alternatives", title="Alternatives, and why not", html=html)


def _sensitivities(told: Sequence[Member] | None) -> list[Section]:
    """What better hardware would buy; where it was not asked for, how to ask."""
    title = "What if"
    if told is None:
        html = (
            "<p>Add <code>--explain</code> to see what better hardware would buy.</p>"
        )
        return [Section(name="what-if", title=title, html=html)]
    body = [
        (
            one["change"],
            f"{one['throughput']:+.1%}",
            format_seconds(one["step_time_s"]),
            format_bytes(one["peak_memory_bytes"]),
            one["how"],
            "the same" if one["layout"] is None else "another",
        )
        for one in told
    ]
    heads = ["change", "tokens/s", "step", "peak memory", "how", "layout"]
    return [Section(name="what-if", title=title, html=rows(heads, body))]
