"""What binds the recommendation, what each runner-up lost, which are as good.

Shares are of `breakdown_s`: what the step would save at most if that part vanished.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from planner.analysis.uncertainty import INDISTINGUISHABLE, level_of, ratio_half
from planner.problem import Candidate, Objective, Problem, Solution
from profiles.units import format_bytes

WORDS: Final = {
    "tensor_comm": "tensor parallel",
    "context_comm": "context parallel",
    "expert_comm": "expert parallel",
    "pipeline_comm": "pipeline P2P",
    "data_comm": "data parallel",
    "offload": "offloading",
}
BRIEF: Final = {  # for a narrow column, beside a layout's degrees
    "tensor_comm": "tp",
    "context_comm": "cp",
    "expert_comm": "ep",
    "pipeline_comm": "P2P",
    "data_comm": "dp",
}
SAME: Final = 1e-4  # as good as no difference
NOTICEABLE: Final = 0.02  # shares of the step below this bind nothing


def binds(problem: Problem, solution: Solution) -> str:
    """What keeps the recommendation from being better, largest first."""
    best = solution.best
    if best is None:
        return "nothing fits"
    if problem.objective is Objective.MEMORY:
        return fullest(best)
    parts = _shares(best, problem)
    if solution.too_big is not None:
        parts.insert(0, _memory(best, solution.too_big))
    return "; ".join(parts)


def _shares(best: Candidate, problem: Problem) -> list[str]:
    """What takes a noticeable share of the step, largest first."""
    total = best.estimate.step_time_s
    parts = best.estimate.breakdown_s.items()
    shares = sorted(((s / total, part) for part, s in parts), reverse=True)
    return [
        f"{_named(part, best, problem)} {share:.0%}"
        for share, part in shares
        if share >= NOTICEABLE
    ]


def fullest(best: Candidate) -> str:
    """The largest kinds of memory on the fullest rank."""
    rank = max(best.estimate.memory, key=lambda item: float(item.total))
    kinds = rank.document()
    total = kinds.pop("total")
    largest = sorted(kinds.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {size / total:.0%}" for name, size in largest)


def _memory(best: Candidate, too_big: Candidate) -> str:
    gain = faster(best, too_big)
    peak = format_bytes(too_big.estimate.peak_secured_bytes)
    return f"memory: with {peak} a layout {gain:.1%} faster would fit"


def _named(part: str, candidate: Candidate, problem: Problem) -> str:
    word = WORDS.get(part, part)
    if len(problem.machine.cluster.islands) > 1:
        return word
    level = level_of(part, candidate, problem.machine.island)
    return f"{word} over {level.name}" if level else word


def loss(
    problem: Problem,
    best: Candidate,
    other: Candidate,
    words: Mapping[str, str] = WORDS,
) -> str:
    """Where *other* is worse than *best*: the parts of the step that grew most, in
    *words* and per cent of the best step, or else the memory that it needs more."""
    step_s = best.estimate.step_time_s
    grown = _grown(best.estimate.breakdown_s, other.estimate.breakdown_s)
    named = [f"{words.get(part, part)} +{s / step_s:.1%}" for part, s in grown[:2]]
    timed = problem.objective is not Objective.MEMORY
    if named and timed and worse(problem, best, other) > SAME:
        return ", ".join(named)
    more = other.estimate.peak_needed_bytes - best.estimate.peak_needed_bytes
    return f"needs {format_bytes(more)} more" if more > 0 else "nothing"


def _grown(
    best: Mapping[str, float], other: Mapping[str, float]
) -> list[tuple[str, float]]:
    """Parts that explain a tenth or more of all growth, most first."""
    changes = {part: other[part] - best[part] for part in best}
    total = sum(max(change, 0) for change in changes.values())
    found = [(part, more) for part, more in changes.items() if more > total / 10]
    return sorted(found, key=lambda item: -item[1])


def worse(problem: Problem, best: Candidate, other: Candidate) -> float:
    """How much larger the objective's value of *other* is, as a fraction."""
    return problem.value(other) / problem.value(best) - 1


def faster(best: Candidate, other: Candidate) -> float:
    """How much shorter the step of *other* is, as a fraction of the best one's."""
    return 1 - other.estimate.step_time_s / best.estimate.step_time_s


def indistinguishable(problem: Problem, solution: Solution) -> list[int]:
    """Runners-up that the cost model cannot tell from the best, faster or slower."""
    best = solution.best
    if best is None:
        return []
    return [
        index
        for index, other in enumerate(solution.runners_up)
        if abs(worse(problem, best, other)) <= doubt(problem, best, other)
    ]


def doubt(problem: Problem, best: Candidate, other: Candidate) -> float:
    """How much larger the value of *other* may be, as a fraction, and still be less."""
    if problem.objective is Objective.MEMORY:
        return INDISTINGUISHABLE
    return ratio_half(problem, best, other)
