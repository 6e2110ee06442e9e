"""The best schedule of a few jobs, by an integer program: the oracle of `moldable`.

    x_jb ∈ {0, 1}           job j runs on block b (whose size gives its seconds)
    y_ij ∈ {0, 1}           i before j, where they share a GPU
    s_j ≥ 0                 its start;  minimise C
    Σ_b x_jb = 1
    s_j + Σ_b t_jb x_jb ≤ C
    s_i + Σ_b t_ib x_ib ≤ s_j + H (3 − y_ij − on_ig − on_jg)      every GPU g
    s_j + Σ_b t_jb x_jb ≤ s_i + H (2 + y_ij − on_ig − on_jg)

with on_jg = Σ x_jb over blocks b that hold g, and H all jobs' longest times together.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import Any, Final

from planner.jobs.moldable import Moldable, Placed, Schedule, blocks, lower_bound_s
from profiles.errors import OutOfTime

TIME_LIMIT_S: Final = 60.0


def best_schedule(
    jobs: Sequence[Moldable], gpus: int, node: int, *, limit_s: float = TIME_LIMIT_S
) -> Schedule:
    """The least makespan; deadlines and priorities are left out.

    Raises OutOfTime where it is not proven in *limit_s*.
    """
    import pulp

    longest = sum(max(job.seconds.values()) for job in jobs)
    with warnings.catch_warnings():  # 3.3 announces the words of 4.0
        warnings.simplefilter("ignore", DeprecationWarning)
        program = pulp.LpProblem("jobs", pulp.LpMinimize)
        end = pulp.LpVariable("end", 0)
        program += end
        picks = [
            _picks(pulp, program, j, job, gpus, node) for j, job in enumerate(jobs)
        ]
        starts = [pulp.LpVariable(f"s{j}", 0) for j in range(len(jobs))]
        took = [
            pulp.lpSum(job.seconds[n] / longest * x for (n, _), x in own.items())
            for job, own in zip(jobs, picks, strict=True)
        ]
        for start, seconds in zip(starts, took, strict=True):
            program += start + seconds <= end
        for i, j in combinations(range(len(jobs)), 2):
            first = pulp.LpVariable(f"y{i}_{j}", 0, 1, pulp.LpBinary)
            for g in range(gpus):
                both = _on(pulp, picks[i], g) + _on(pulp, picks[j], g)
                program += starts[i] + took[i] <= starts[j] + (3 - first - both)
                program += starts[j] + took[j] <= starts[i] + (2 + first - both)
        program.solve(pulp.HiGHS(msg=False, timeLimit=limit_s))
    if program.sol_status != pulp.LpSolutionOptimal:
        raise OutOfTime(f"no schedule was proven best within {limit_s:g} s")
    placed = []
    for job, start, own in zip(jobs, starts, picks, strict=True):
        values = {key: x.value() for key, x in own.items()}
        n, first = max(values, key=values.__getitem__)
        at = Placed(job=job, gpus=n, first=first, start_s=start.value() * longest)
        placed.append(at)
    return Schedule(placed=tuple(placed), lower_s=lower_bound_s(jobs, gpus))


def _picks(
    pulp: Any, program: Any, j: int, job: Moldable, gpus: int, node: int
) -> dict[tuple[int, int], Any]:
    """The blocks of a job, by size and first GPU; one is taken."""
    own = {
        (n, first): pulp.LpVariable(f"x{j}_{n}_{first}", 0, 1, pulp.LpBinary)
        for n in job.seconds
        for first in blocks(n, gpus, node)
    }
    program += pulp.lpSum(own.values()) == 1
    return own


def _on(pulp: Any, own: dict[tuple[int, int], Any], g: int) -> Any:
    return pulp.lpSum(x for (n, first), x in own.items() if first <= g < first + n)
