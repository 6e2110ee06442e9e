"""The smallest ratio: it fits, and a little less does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.simulation.estimator import estimate
from planner.search.offload import smallest_ratio, with_ratio
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job

CLUSTER = cluster("dgx-a100-80gb")
ON = machine(CLUSTER)
JOB = Job(model="gpt-13b", spec=model("gpt-13b").spec, seq_len=2048, global_batch=64)
CHOICE = Uniform(tp=2, pp=4, micro_batch=4, sequence_parallel=True)


def peak(ratio: float) -> float:
    choice = replace(CHOICE, offload=Offload(activations=ratio))
    layout = spell_out(choice, JOB.graph, JOB.global_batch)
    return estimate(JOB, CLUSTER, layout, on=ON).peak_needed_bytes


@pytest.mark.parametrize("share", [0.05, 0.37, 0.5, 0.93])
def test_it_fits_and_a_little_less_does_not(share: float) -> None:
    most, least = peak(0.0), peak(1.0)
    limit = least + (1 - share) * (most - least)
    found = with_ratio(CHOICE, JOB, ON, limit)
    assert found is not None
    ratio = found.offload.activations
    assert peak(ratio) <= limit
    assert peak(ratio - 0.002) > limit


def test_what_fits_stays_and_what_never_does_is_none() -> None:
    found = with_ratio(CHOICE, JOB, ON, peak(0.0))
    assert found is not None
    assert found.offload.activations == 0
    assert with_ratio(CHOICE, JOB, ON, 0.9 * peak(1.0)) is None


@given(st.floats(1, 100), st.floats(0, 1), st.floats(0, 1.5))
def test_the_closed_form(kept: float, away: float, limit: float) -> None:
    ratio = smallest_ratio(kept, away * kept, limit * kept)
    if ratio is None:
        assert away > limit
        return
    needed = (1 - ratio) + ratio * away
    assert ratio == 0 or needed <= limit + 1e-9
