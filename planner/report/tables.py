"""A plan for a terminal: the recommendation, its proof, and the runners-up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

from costmodel.layout import AUTO, Layout
from costmodel.report import (
    assumed_words,
    breakdown_words,
    headline,
    memory_table,
    pairs_table,
)
from costmodel.stages import Place, places_of
from costmodel.support import BY_STAGE
from planner.analysis import (
    BRIEF,
    binds,
    faster,
    indistinguishable,
    loss,
    why_chosen,
    worse,
)
from planner.problem import (
    Objective,
    Problem,
    Solution,
    Staged,
    Status,
    away_words,
    candidate_words,
    retention_words,
    short_candidate_words,
)
from planner.report.frameworks import software_words
from profiles.units import MB, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

_UNITS = {
    "step_time_s": "step time",
    "dollars_per_token": "cost",
    "peak_needed_bytes": "memory needed",
}
LOSS_WIDTH: Final = 16  # of what a runner-up loses, in characters


def plan_view(
    problem: Problem,
    solution: Solution,
    assumed: Mapping[str, Any],
    beside: Sequence[tuple[str, str]] = (),
    *,
    details: bool = False,
) -> Group:
    """What `plan` shows: the recommendation in a sentence, what is worth knowing and,
    with *details*, the rest; *beside* are lines that were asked for."""
    from rich.console import Group
    from rich.text import Text

    best = solution.best
    assert best is not None, "who has no layout says why instead"
    found = best.estimate
    rows = [*_rows(problem, solution, beside, details=details)]
    if assumed:
        rows.append(("assumed", assumed_words(assumed, details=details)))
    parts: list[RenderableType] = [
        Text(sentence(problem, solution), style="bold"),
        pairs_table(rows),
        Text(),
        memory_table(found.memory, details=details),
    ]
    places = places_of(found.layout, problem.machine.cluster)
    if places:
        parts += [Text(), places_table(places, found.layout)]
    if solution.runners_up:
        parts += [Text(), runners_up_table(problem, solution, details=details)]
    return Group(*parts)


_BEST = {
    Objective.THROUGHPUT: "faster",
    Objective.TIME_TO_TRAIN: "faster",
    Objective.COST: "cheaper",
    Objective.MEMORY: "smaller",
}


def sentence(problem: Problem, solution: Solution) -> str:
    """The recommendation, in one."""
    best = solution.best
    assert best is not None, "who has no layout recommends none"
    found, job, better = best.estimate, problem.job, _BEST[problem.objective]
    of_all = f"of {solution.counters.considered:,} layouts none that fits is"
    if not solution.lower:
        proof = f"the best of {solution.counters.considered:,} that were tried"
    elif solution.status is Status.OPTIMAL:
        proof = f"{of_all} {better} (gap 0)"
    else:
        proof = f"{of_all} more than {solution.gap:.2%} {better} (the gap)"
    return (
        f"Train {job.model} on {problem.gpus:,} × {found.device} with "
        f"{candidate_words(best, job.global_batch)}: "
        f"{format_seconds(found.step_time_s)} a step; {proof}."
    )


def _rows(
    problem: Problem,
    solution: Solution,
    beside: Sequence[tuple[str, str]],
    *,
    details: bool,
) -> Iterator[tuple[str, str]]:
    """Names on the left, what they say on the right."""
    best = solution.best
    assert best is not None, "who has no layout says why instead"
    alike = solution if solution.wider is None else solution.wider.alike
    alike = replace(alike, by_estimate=solution.by_estimate)
    found, why = best.estimate, why_chosen(problem, solution)
    yield "batch", problem.job.step_words
    yield "for", software_words(problem, found.layout, details=details)
    if why:
        yield "chosen", why.removeprefix("chosen ")
    yield from headline(found, details=details)
    yield from _try_first(problem, solution)
    yield from _cost(problem, solution)
    yield from beside
    if details:
        yield "time breakdown", breakdown_words(found.breakdown_s)
    yield "bottleneck", binds(problem, solution)
    if details:
        yield "optimality", proof_words(problem, alike)
        yield from _beside(problem, alike)
        yield from _cuts(alike)
        yield from _retentions(solution)
        yield from _operators(solution)
    yield from wider_words(problem, solution)


def places_table(places: Sequence[Place], layout: Layout) -> Table:
    """One line a stage: its layers, and the devices that they run on."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold", show_edge=False)
    table.add_column("stage", justify="right", no_wrap=True)
    for name in ("layers", "ranks", "devices", "mesh"):
        table.add_column(name, overflow="fold")
    for place in places:
        mesh = layout.stages[place.stage].mesh
        sizes = {"tp": mesh.tp, "cp": mesh.cp, "dp": mesh.dp}
        degrees = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        table.add_row(
            str(place.stage),
            place.layers.replace(",", ", "),
            place.ranks,
            f"{mesh.size} × {' and '.join(place.devices)}",
            " · ".join(degrees) or "one device",
        )
    return table


def wider_words(problem: Problem, solution: Solution) -> list[tuple[str, str]]:
    """What unlike stages gain, and how much more they could."""
    wider = solution.wider
    if wider is None:
        return []
    gain = 1 - solution.preset_value / wider.alike.value
    won = f"{gain:.1%} better than those" if gain else "no better than those"
    left = max(0.0, 1 - wider.lower / solution.value)
    tried = (
        f"{wider.partitions:,} partitions bounded, {wider.simulated} simulated; none "
        f"is more than {left:.1%} faster"
    )
    return [("heterogeneous stages", f"{won}: {tried}")]


def proof_words(problem: Problem, solution: Solution) -> str:
    """The certificate in one sentence."""
    counters, name = solution.counters, _UNITS[problem.objective.quantity]
    layouts = "executable layouts" if problem.executable else "layouts"
    if not solution.lower:
        return (
            f"none: {solution.search} looked at {counters.considered:,} {layouts}, "
            f"{counters.simulated:,} of them simulated, in "
            f"{format_seconds(solution.seconds)}, and bounds no other"
        )
    of_all = f"none of {counters.considered:,} {layouts}"
    if solution.cuts is not None and solution.cuts.even_value is not None:
        of_all += ", nor any cut of the layers of 1F1B,"
    if solution.only_unlike:  # alike ones are tried, and not bounded
        of_all = (
            f"none of {counters.considered:,} partitions into heterogeneous 1F1B stages"
        )
    fits = _fit_words(problem)
    if solution.status is Status.OPTIMAL:
        claim = f"{of_all} has a smaller {name} (gap 0) and {fits}"
    else:
        claim = (
            f"{of_all} has a {name} smaller by more than {solution.gap:.2%} (the gap) "
            f"and {fits}"
        )
    claim += _by_estimate(problem, solution)
    return (
        f"{claim}: {counters.by_memory:,} ruled out by memory, {counters.by_value:,} "
        f"by bounds, {counters.simulated:,} simulated, in "
        f"{format_seconds(solution.seconds)}"
    )


def _fit_words(problem: Problem) -> str:
    """What is asked of the memory of every layout that the proof speaks of."""
    if problem.by_odds:
        return f"fits with probability {problem.probability:g}"
    return f"fits in {format_bytes(problem.memory_limit_bytes)}"


def _by_estimate(problem: Problem, solution: Solution) -> str:
    """The fastest that fits by its estimate alone, where it is faster."""
    best, other = solution.best, solution.by_estimate
    if best is None or other is None:
        return ""
    named = short_candidate_words(other, problem.job.global_batch)
    return f"; by estimate alone {named} fits, {faster(best, other):.1%} faster"


def _try_first(problem: Problem, solution: Solution) -> list[tuple[str, str]]:
    """The faster layout that may not fit, and what being sure costs."""
    best, other = solution.best, solution.try_first
    if best is None or other is None:
        return []
    found = other.estimate
    words = (
        f"{candidate_words(other, problem.job.global_batch)}: "
        f"{format_seconds(found.step_time_s)}, {faster(best, other):.1%} faster, if "
        f"{format_bytes(found.peak_needed_bytes)} fits "
        f"(probability {found.probability_fits:.0%})"
    )
    return [("try first", words)]


def _beside(problem: Problem, solution: Solution) -> list[tuple[str, str]]:
    """What was looked at beside the space that the proof speaks of."""
    added = solution.added
    if added is None or not added.considered:
        return []
    gain = 1 - solution.even_value / added.uniform_value
    found = f"{gain:.2%} faster than" if gain else "no faster than"
    tried = f"{added.simulated:,} of {added.considered:,} layouts simulated"
    rest = _rest_words(1 - added.lower / solution.value, 2)
    by_stage = problem.offers("recompute in", BY_STAGE)
    words = (
        f"chosen per stage, {found} one choice for all stages"
        if by_stage
        else f"of the first layers alone, {found} of all layers"
    )
    if added.uniform_value == inf:
        words = (
            "only a choice per stage fits" if by_stage else "only of first layers fits"
        )
    return [("recompute", f"{words} ({tried}; {rest})")]


def _rest_words(left: float, digits: int) -> str:
    """By how much what was not simulated might beat the plan, by its bound."""
    if left <= 1e-9:  # rounding
        return "none of the rest can be faster than this plan"
    shown = max(left, 10.0 ** -(digits + 2))
    return f"the rest at most {shown:.{digits}%} faster than this plan"


def _cuts(solution: Solution) -> list[tuple[str, str]]:
    """What stages of unequal layers gain, where they do."""
    cuts, best = solution.cuts, solution.best
    if cuts is None or best is None:
        return []
    if cuts.even_value is None:
        return []
    gain = solution.cut_gain
    if gain == 0 and not cuts.fitted:
        return []
    found = f"{gain:.1%} better than" if gain else "no better than"
    words = (
        "equal ones do not fit"
        if gain is None
        else f"unequal layers {found} equal ones"
    )
    rest = _rest_words(1 - cuts.fitted_lower / solution.value, 1)
    tried = f"{cuts.simulated + cuts.fitted} cuts of {cuts.considered:,} layouts tried"
    return [("stages", f"{words} ({tried}; with recompute chosen per stage, {rest})")]


def _retentions(solution: Solution) -> list[tuple[str, str]]:
    """What each stage recomputes and offloads, where it was chosen stage by stage."""
    best = solution.best
    if best is None:
        return []
    if not isinstance(best, Staged) and best.choice.recompute != AUTO:
        return []
    layout = best.estimate.layout
    rows = [("recomputed", retention_words(layout))]
    return rows + ([("offloaded", away_words(layout))] if layout.away_share else [])


def _operators(solution: Solution) -> list[tuple[str, str]]:
    """What is known of shardings other than the preset's."""
    found = solution.operators
    if found is None:
        return []
    blocks = ", ".join(
        dict.fromkeys(f"{one.block!r} on tp {one.tp}" for one in found.proofs)
    )
    left = max(one.gap for one in found.proofs)
    proof = f"to within {left:.1%}" if left else "proven"
    if found.preset_value is None:
        kept = "no other sharding is faster in the same memory"
        slower = any(one.best_s < one.own_s for one in found.proofs)
        how = "simulated" if slower else proof
        return [("operators", f"{blocks}: {kept} ({how})")]
    gain = 1 - solution.value / found.preset_value
    return [("operators", f"{blocks}: {gain:.1%} better than the preset ({proof})")]


def _cost(problem: Problem, solution: Solution) -> list[tuple[str, str]]:
    if problem.objective is not Objective.COST:
        return []
    return [("cost", f"{solution.value * MB:,.4f} dollars per million tokens")]


def runners_up_table(
    problem: Problem, solution: Solution, *, details: bool = True
) -> Table:
    """One line a runner-up: how much slower, and where the time goes; without *details*
    where most of it goes."""
    from rich.table import Table

    best = solution.best
    assert best is not None, "runners-up come after the best"
    alike = indistinguishable(problem, solution)
    table = Table(box=None, padding=(0, 1), header_style="bold", show_edge=False)
    table.add_column("runners-up", overflow="fold")
    how = "larger" if problem.objective is Objective.MEMORY else "slower"
    for name in ("step", how, "peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("slower in", overflow="fold", max_width=LOSS_WIDTH)
    for index, other in enumerate(solution.runners_up):
        found = other.estimate
        mark = "≈" if index in alike else ""
        lost = loss(problem, best, other, BRIEF)
        table.add_row(
            short_candidate_words(other, problem.job.global_batch),
            format_seconds(found.step_time_s),
            f"{mark}{worse(problem, best, other):.1%}",
            format_bytes(found.peak_memory_bytes),
            lost if details else lost.partition(",")[0],
        )
    if alike:
        table.caption_justify = "left"
        table.caption = " ≈ indistinguishable by the cost model"
    return table


def searches_table(problem: Problem, solutions: Sequence[Solution]) -> Table:
    """One line a search: what it found, how much worse that is than the best of them,
    what it knows, what it took."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("search", no_wrap=True)
    found = [one.best for one in solutions if one.best is not None]
    best = min(found, key=problem.value, default=None)
    how = "larger" if problem.objective is Objective.MEMORY else "slower"
    for name in ("step", how, "gap", "tried", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("layout", overflow="fold")
    for one in solutions:
        own, counters = one.best, one.counters
        if own is None or best is None:
            words = ("none", "", "", "")
        else:
            words = (
                format_seconds(own.estimate.step_time_s),
                f"{worse(problem, best, own):.1%}",
                f"{one.gap:.2%}" if one.lower else "unknown",
                short_candidate_words(own, problem.job.global_batch),
            )
        table.add_row(
            one.search,
            *words[:3],
            f"{counters.simulated:,}",
            f"{one.seconds:.2f}",
            words[3],
        )
    return table
