"""Sharded-LRTF (Hydra): the row's check, and an integer program of small cases."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.jobs.sharded import sharded
from tests.support.rows import Obtained


@pytest.mark.row(
    "H10", "makespan of 12 equal jobs on 8 GPUs over Σ work / 8", expected="at most 1.1"
)
def test_h10_twelve_equal_jobs_on_eight_gpus(obtained: Obtained) -> None:
    """The makespan is at most 1.1 times Σ work / 8; whole jobs would need 1.33."""
    found = sharded(dict.fromkeys(map(str, range(12)), 100.0), 8)
    assert found.lower_s == 150
    obtained(f"{found.makespan_s / found.lower_s:.3f}")
    assert found.makespan_s <= 1.1 * found.lower_s
    assert found.gap < 0.02


@given(
    work=st.lists(st.floats(1, 100), min_size=1, max_size=20),
    gpus=st.integers(1, 9),
)
def test_no_gpu_has_two_jobs_and_no_job_two_gpus(work: list[float], gpus: int) -> None:
    named = {str(number): seconds for number, seconds in enumerate(work)}
    found = sharded(named, gpus)
    for of in ("gpu", "name"):
        groups: dict[Any, list[tuple[float, float]]] = {}
        for one in found.turns:
            groups.setdefault(getattr(one, of), []).append((one.start_s, one.end_s))
        for spans in groups.values():
            spans.sort()
            for (_, end), (start, _) in pairwise(spans):
                assert start >= end - 1e-9
    for name, seconds in named.items():
        done = sum(t.end_s - t.start_s for t in found.turns if t.name == name)
        assert done == pytest.approx(seconds)
    assert found.lower_s <= found.makespan_s * (1 + 1e-9)
    assert found.makespan_s <= found.lower_s + max(work) / 50 * 2


def fewest(chains: dict[str, tuple[int, int]], gpus: int) -> float:
    """The least makespan of chains of so many shards of so many seconds each, by an
    integer program over the starts of every shard."""
    import pulp

    horizon = sum(count * seconds for count, seconds in chains.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        program = pulp.LpProblem("shards", pulp.LpMinimize)
        end = pulp.LpVariable("end", 0)
        program += end
        at: dict[tuple[str, int], list[Any]] = {}
        for name, (count, seconds) in chains.items():
            for shard in range(count):
                own = [
                    pulp.LpVariable(f"x_{name}_{shard}_{t}", 0, 1, pulp.LpBinary)
                    for t in range(horizon)
                ]
                at[name, shard] = own
                program += pulp.lpSum(own) == 1
                starts = pulp.lpSum(t * x for t, x in enumerate(own))
                program += starts + seconds <= end
                if shard:
                    before = at[name, shard - 1]
                    earlier = pulp.lpSum(t * x for t, x in enumerate(before))
                    program += earlier + seconds <= starts
        for t in range(horizon):
            busy = [
                x
                for (name, _), own in at.items()
                for x in own[max(0, t - chains[name][1] + 1) : t + 1]
            ]
            program += pulp.lpSum(busy) <= gpus
        program.solve(pulp.HiGHS(msg=False, timeLimit=60))
    assert program.sol_status == pulp.LpSolutionOptimal
    found: float = pulp.value(end)
    return found


CASES = [
    {"a": (4, 1), "b": (4, 1), "c": (4, 1)},
    {"a": (6, 1), "b": (2, 2), "c": (3, 1), "d": (2, 1)},
    {"a": (3, 2), "b": (3, 2), "c": (3, 2)},
    {"a": (5, 2), "b": (4, 1), "c": (6, 1)},
]


@pytest.mark.row(
    "H10", "LRTF over the integer program, small cases", expected="at most 1.05"
)
@pytest.mark.parametrize("chains", CASES, ids=str)
def test_h10_largest_remaining_time_first_is_near_the_best(
    chains: dict[str, tuple[int, int]], obtained: Obtained
) -> None:
    """Within 5 % of the integer program, on two GPUs."""
    best = fewest(chains, 2)
    work = {name: float(count * s) for name, (count, s) in chains.items()}
    units = {name: float(seconds) for name, (_, seconds) in chains.items()}
    found = sharded(work, 2, units).makespan_s
    obtained(f"{found / best:.3f}")
    assert found <= 1.05 * best
