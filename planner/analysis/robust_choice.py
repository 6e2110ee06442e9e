"""Robust choice: among near-ties, the layout whose bad case is best.

The search minimises an estimate; estimates are off. Of layouts that the model cannot
tell from the best, and that give up no more than the gap that is asked of a proof, the
one is recommended whose step is shortest in its worst tenth, if it fits as surely. The
certificate goes on speaking of estimates: its gap contains what was given up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from planner.analysis.explain import worse
from planner.analysis.uncertainty import bad_case_s, ratio_half, shares
from planner.problem import (
    Candidate,
    Objective,
    Problem,
    Solution,
    Status,
    short_candidate_words,
)
from planner.search import check, distinct

LARGEST_GAP: Final = 0.01  # of the certificate, with what is given up
WORTHWHILE: Final = 0.002  # how much better a bad case has to be
SURE: Final = 0.9  # with less probability of fitting the worst tenth runs out of memory
LOOKED_AT: Final = 5  # runners-up, whether they are shown or not
DROPPED: Final = (
    2  # of them at most, which a better retention makes the same as the best
)


def looked_for(runners_up: int) -> int:
    """How many runners-up a search is asked for, where so many are to be named."""
    return max(runners_up, LOOKED_AT) + DROPPED


def recommended(problem: Problem, solution: Solution, runners_up: int) -> Solution:
    """*solution* with the near-tie recommended whose bad case is best, and so many
    runners-up that are not the same (`shortlist`); checked. Best asked for with as many
    as are `looked_for`."""
    found = prefer(problem, solution)
    if found.best is not None:
        _, *others = distinct(problem, (found.best, *found.runners_up))
        found = replace(found, runners_up=tuple(others[:runners_up]))
    check(problem, found)
    return found


def prefer(problem: Problem, solution: Solution) -> Solution:
    """*solution* with the near-tie recommended whose bad case is best."""
    best = solution.best
    if best is None or problem.objective is Objective.MEMORY or solution.wider:
        return solution
    others = [one for one in solution.runners_up if _degrees(one) != _degrees(best)]
    near = [one for one in others[:LOOKED_AT] if _near(problem, best, one)]
    near = [one for one in near if _gap(problem, solution, one) <= LARGEST_GAP]
    chosen = min((best, *near), key=lambda one: bad_case(problem, one))
    better = bad_case(problem, chosen) < bad_case(problem, best) * (1 - WORTHWHILE)
    if chosen is best or not better:
        return solution
    others = [one for one in (best, *solution.runners_up) if one is not chosen]
    return replace(
        solution,
        best=chosen,
        value=problem.value(chosen),
        status=Status.FEASIBLE,
        runners_up=tuple(others),
        instead_of=best,
    )


def _degrees(candidate: Candidate) -> tuple[object, ...]:
    """Runners-up differ in these; others come in where too few are left, as where some
    are pinned, which is no reason to recommend another layout."""
    summary = candidate.estimate.layout.summary
    return tuple(summary[name] for name in ("tp", "pp", "dp", "cp", "ep"))


def _gap(problem: Problem, solution: Solution, candidate: Candidate) -> float:
    """That of the certificate, if *candidate* were recommended."""
    return 1 - solution.lower / problem.value(candidate)


def bad_case(problem: Problem, candidate: Candidate) -> float:
    """Seconds of the worst tenth; infinite if the device is then out of memory."""
    chance = candidate.estimate.interval["probability_fits"]
    return bad_case_s(problem, candidate) if chance >= SURE else float("inf")


def _near(problem: Problem, best: Candidate, other: Candidate) -> bool:
    return worse(problem, best, other) <= ratio_half(problem, best, other)


def why_chosen(problem: Problem, solution: Solution) -> str | None:
    """Why the fastest by estimate is not recommended; None where it is."""
    best, other = solution.best, solution.instead_of
    if best is None or other is None:
        return None
    apart = worse(problem, other, best)
    named = short_candidate_words(other, problem.job.global_batch)
    return (
        f"chosen over {named}, {apart:.1%} faster by estimate, because "
        f"{because(problem, best, other)}"
    )


def because(problem: Problem, best: Candidate, other: Candidate) -> str:
    """What makes the bad case of *best* better than that of *other*."""
    if other.estimate.interval["probability_fits"] < SURE:
        chance = other.estimate.interval["probability_fits"]
        return f"that fits with probability {chance:.0%} only"
    gain = 1 - bad_case_s(problem, best) / bad_case_s(problem, other)
    words = f"more robust: its P90 step is {gain:.1%} shorter"
    mine, others = shares(problem, best), shares(problem, other)
    more = {name: others[name] - mine[name] for name in others}
    most = max(more, key=lambda name: more[name])
    if problem.machine.measured is not None or more[most] <= 0:
        return words
    return (
        f"{words}: it depends less on {most} ({mine[most]:.0%}, not {others[most]:.0%})"
    )
