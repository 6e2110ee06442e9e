"""Closed forms of what is in flight, against the streams themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.schedule.schedules import SCHEDULES, peak_in_flight
from costmodel.timeline.timeline import simulate
from profiles.errors import UnknownName
from tests.support.pipelines import Pipeline, pipelines, plain_costs


@given(pipelines(names=tuple(SCHEDULES)))
def test_the_closed_form_is_the_streams_own_count(pipeline: Pipeline) -> None:
    found = simulate(*pipeline, plain_costs(pipeline))
    ranks = np.arange(pipeline.pp)
    alive = peak_in_flight(pipeline.schedule, ranks, *pipeline[1:])
    assert found.peak_bytes.tolist() == alive.tolist()
    assert found.in_flight_at_peak().sum(axis=1).tolist() == alive.tolist()


@given(st.integers(1, 40), st.integers(1, 40))
def test_gpipe_holds_all_and_1f1b_no_more_than_its_depth(pp: int, m: int) -> None:
    ranks = np.arange(pp)
    one = peak_in_flight("1f1b", ranks, pp, 1, m)
    assert one.tolist() == [min(pp - rank, m) for rank in range(pp)]
    all_of_them = peak_in_flight("gpipe", ranks, pp, 1, m)
    assert set(all_of_them.tolist()) == {m if pp > 1 else 1}


def test_columns_of_candidates() -> None:
    pp, chunks, m = np.array([2, 4, 8]), np.array([2, 2, 4]), np.array([8, 4, 64])
    found = peak_in_flight("interleaved", 0, pp, chunks, m)
    singly = [
        int(peak_in_flight("interleaved", 0, *row))
        for row in zip(pp, chunks, m, strict=True)
    ]
    assert found.tolist() == singly == [5, 8, 39]


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(UnknownName):
        peak_in_flight("2f2b", 0, 2, 1, 2)
