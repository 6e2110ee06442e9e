"""Schedules of moldable jobs: legal, above their bound, and near the best there is."""

from __future__ import annotations

from itertools import combinations
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.jobs.ilp import best_schedule
from planner.jobs.moldable import Moldable, Schedule, lower_bound_s, schedule

GPUS, NODE = 8, 4


@st.composite
def jobs(draw: st.DrawFn, /, most: int = 6) -> list[Moldable]:
    """Of work that is cut less well by more GPUs; some do not fit on few."""
    found = []
    for number in range(draw(st.integers(1, most))):
        work, cut = draw(st.floats(1, 20)), draw(st.floats(0.5, 1))
        least = draw(st.sampled_from([1, 1, 2, 4]))
        seconds = {g: work / g**cut for g in (1, 2, 4, 8) if g >= least}
        found.append(Moldable(name=f"job {number}", seconds=seconds))
    return found


def require_legal(found: Schedule, asked: list[Moldable], gpus: int) -> None:
    assert sorted(one.job.name for one in found.placed) == [j.name for j in asked]
    for one in found.placed:
        assert 0 <= one.first <= gpus - one.gpus
        assert one.first % min(one.gpus, NODE) == 0  # whole nodes, or a part of one
    for one, other in combinations(found.placed, 2):
        apart = one.first >= other.first + other.gpus
        apart = apart or other.first >= one.first + one.gpus
        after = one.start_s >= other.end_s - 1e-6
        assert apart or after or other.start_s >= one.end_s - 1e-6


@settings(max_examples=30, deadline=None)
@given(asked=jobs(most=9))
def test_schedules_are_legal_and_above_their_bound(asked: list[Moldable]) -> None:
    found = schedule(asked, GPUS, NODE)
    require_legal(found, asked, GPUS)
    assert found.lower_s <= found.makespan_s * (1 + 1e-12)
    in_turn = sum(min(job.seconds.values()) for job in asked)
    assert found.makespan_s <= in_turn * (1 + 1e-9)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(asked=jobs(most=4))
def test_few_jobs_are_within_a_twentieth_of_the_integer_program(
    asked: list[Moldable],
) -> None:
    found = schedule(asked, GPUS, NODE)
    best = best_schedule(asked, GPUS, NODE)
    require_legal(best, asked, GPUS)
    assert best.lower_s <= best.makespan_s * (1 + 1e-6)
    assert best.makespan_s <= found.makespan_s * (1 + 1e-6)
    assert found.makespan_s <= 1.05 * best.makespan_s


def test_the_bound_is_of_work_or_of_the_longest_job() -> None:
    alone = Moldable(name="long", seconds={1: 10.0})
    assert lower_bound_s([alone], 8) == 10
    alike = [Moldable(name=f"{n}", seconds={1: 1.0, 2: 0.6}) for n in range(16)]
    assert lower_bound_s(alike, 8) == 2  # on one GPU each is the least work
    few = [Moldable(name=f"{n}", seconds={1: 1.0, 2: 0.6}) for n in range(2)]
    assert lower_bound_s(few, 8) == pytest.approx(0.6)


def test_deadlines_come_before_the_makespan() -> None:
    urgent = Moldable(name="urgent", seconds={1: 4.0, 8: 1.0}, deadline_s=1.5)
    others = [Moldable(name=f"{n}", seconds={1: 4.0}) for n in range(8)]
    found = schedule([*others, urgent], GPUS, NODE)
    assert found.late == 0
    place = next(one for one in found.placed if one.job is urgent)
    assert place.end_s <= 1.5
    never = Moldable(name="never", seconds={8: 2.0}, deadline_s=1.0)
    assert schedule([never], GPUS, NODE).late == 1


def test_a_higher_priority_starts_first() -> None:
    low = [Moldable(name=f"low {n}", seconds={8: 5.0 + n}) for n in range(3)]
    high = Moldable(name="high", seconds={8: 1.0}, priority=1)
    found = schedule([*low, high], GPUS, NODE)
    first = min(found.placed, key=lambda one: one.start_s)
    assert first.job is high
    assert first.job.deadline_s == inf


def test_a_schedule_is_made_alike_each_time() -> None:
    asked = [
        Moldable(name=f"{n}", seconds={g: (n + 3) / g**0.8 for g in (1, 2, 4, 8)})
        for n in range(7)
    ]
    assert schedule(asked, GPUS, NODE) == schedule(asked, GPUS, NODE)
