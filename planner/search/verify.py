"""What any answer must satisfy, whichever search it was from."""

from __future__ import annotations

from dataclasses import replace

from costmodel.layout import AUTO
from costmodel.simulation import estimate
from costmodel.support import violations
from planner.problem import EXACT, Candidate, Problem, Solution, Staged


def check(problem: Problem, solution: Solution) -> None:
    """Assert that the answer is legal, fits, keeps the pins, and bounds itself."""
    if solution.best is None:
        return
    for candidate in (solution.best, *solution.runners_up):
        layout = candidate.estimate.layout
        assert isinstance(candidate, Staged) or not list(
            violations(candidate.choice, problem.job, problem.machine.cluster)
        )
        assert not problem.refusals(layout), "what is recommended is carried out"
        assert layout.gpus == problem.gpus, "every GPU is used"
        assert problem.fits(candidate), "what is recommended fits"
        assert problem.value(candidate) >= solution.lower * (1 - EXACT)
    again = again_priced(problem, solution.best)
    assert problem.value(again) == solution.value, "the price is the simulation's"


def again_priced(problem: Problem, candidate: Candidate) -> Candidate:
    """*candidate* simulated anew on the problem's machine; its layout is, where that
    says more than its choice: stages that differ, or retention that was fitted."""
    fitted = candidate.choice.recompute == AUTO
    if not isinstance(candidate, Staged) and not fitted:
        return problem.simulate(candidate.choice)
    layout, on = candidate.estimate.layout, problem.machine
    return replace(candidate, estimate=estimate(problem.job, on.cluster, layout, on=on))
