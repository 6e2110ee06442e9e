"""Timelines worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.timeline.timeline import simulate
from tests.support.pipelines import Pipeline, plain_costs

TWO = Pipeline("1f1b", 2, 1, 2)


def test_two_stages_two_micro_batches() -> None:
    """F 1 s, B 2 s, transfers 0.5 s.

    Gradients reach rank 0 at 4.5 + 0.5 and at 7.5 + 0.5. It waits 3 s and 1 s for
    them, of each 0.5 s for the transfer.
    """
    costs = plain_costs(TWO, send_forward_s=0.5, send_backward_s=0.5)
    found = simulate(*TWO, costs)
    assert found.start_s.tolist() == [[0, 1, 5, 8], [1.5, 2.5, 4.5, 5.5]]
    assert found.end_s.tolist() == [[1, 2, 7, 10], [2.5, 4.5, 5.5, 7.5]]
    assert found.makespan_s == 10
    assert found.waits(0) == pytest.approx((1.0, 3.0))
    assert found.waits(1) == pytest.approx((0.5, 1.0))


def test_a_slow_link_serves_one_send_at_a_time() -> None:
    """Both forwards end before the first has crossed: arrivals 4 and 7."""
    pipeline = Pipeline("gpipe", 2, 1, 2)
    found = simulate(*pipeline, plain_costs(pipeline, send_forward_s=3.0))
    assert found.start_s[1].tolist() == [4, 7, 8, 10]


def test_the_step_waits_for_the_slowest_gradients() -> None:
    """Rank 1's last backward ends at 6, rank 0's at 9."""
    costs = plain_costs(TWO, reduce_s=np.array([0.5, 1.0]), step_s=2.0, gather_s=1.0)
    found = simulate(*TWO, costs)
    assert found.compute_end_s.tolist() == [9, 7]
    assert found.reduce_end_s.tolist() == [9.5, 8]
    assert found.step_start_s.tolist() == [9.5, 9.5]
    assert found.makespan_s == 12.5


def test_reductions_of_a_rank_queue_up() -> None:
    """Rank 1 ends with backwards of stage 3, then of stage 1, 2 s each.

    In one bucket, stage 3's 5 s start when its backward ends; stage 1's follow.
    """
    pipeline = Pipeline("interleaved", 2, 2, 2)
    costs = plain_costs(pipeline, reduce_s=np.array([0, 1.0, 0, 5.0]))
    found = simulate(*pipeline, costs)
    last_of_3, last_of_1 = found.end_s[1][[5, 7]]
    assert [str(found.program.action(1, k)) for k in (5, 7)] == ["3B1", "1B1"]
    assert found.reduce_end_s[1] == max(last_of_3 + 5, last_of_1) + 1
    late = plain_costs(
        pipeline, reduce_s=np.array([0, 1.0, 0, 5.0]), overlap_reduce=False
    )
    assert simulate(*pipeline, late).reduce_end_s[1] == last_of_1 + 6


def test_peak_memory_counts_what_is_in_flight() -> None:
    """Rank 0 saves two micro-batches; the second backward frees before the first."""
    costs = plain_costs(
        TWO,
        saved_bytes=np.array([10.0, 100.0]),
        transient_forward_bytes=1.0,
        transient_backward_bytes=np.array([0.5, 3.0]),
    )
    found = simulate(*TWO, costs)
    assert found.peak_bytes.tolist() == [21, 103]
    assert found.peak_action.tolist() == [1, 1]
    assert found.in_flight_at_peak().tolist() == [[2, 0], [0, 1]]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bubble_of_eight_stages_and_32_micro_batches(schedule: str) -> None:
    """(p − 1)/(m + p − 1) = 7/39 = 0.1795 for both; only memory differs."""
    pipeline = Pipeline(schedule, 8, 1, 32)
    found = simulate(*pipeline, plain_costs(pipeline))
    account = found.account(0)
    assert (account.bubble_s + account.idle_s) / found.makespan_s == pytest.approx(
        0.1795, abs=5e-5
    )
    assert found.peak_bytes.max() == (32 if schedule == "gpipe" else 8)
