"""What was written to be measured: lines, and members of the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planner.beside import Beside
from planner.explain import doubt, worse
from planner.problem import Candidate, Problem
from planner.solution import Solution
from planner.words import short_candidate_words


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
        return f"{slower:+.1%}: the model cannot tell it from the recommendation"
    return f"{slower:+.1%}: unlike the others"
