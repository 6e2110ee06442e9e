"""Families that are no decoders: their prices are bounded, and add up."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.batched.pricing import price
from costmodel.layout.strategy import Columns, Uniform, spell_out
from costmodel.machine.assembly import Machine, machine
from costmodel.schedule.schedules import SCHEDULES
from costmodel.simulation.estimator import estimate
from costmodel.support.legality import violations
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job
from profiles.models.spec import BertSpec

CLUSTER = cluster("dgx-a100-80gb")
NAMES = (
    *("t5-small", "t5-v1.1-large", "bert-base", "albert-large", "vit-base"),
    *("resnet-50", "wrn-28-10", "unet-2d", "unet-3d", "clip-vit-large"),
    *("llava-1.5-7b", "albert-large/4"),
)


@cache
def job(name: str) -> Job:
    name, _, group = name.partition("/")
    found = model(name)
    if group:
        assert isinstance(found.spec, BertSpec)
        found = replace(found, spec=replace(found.spec, shared_layers=int(group)))
    return found.job(global_batch=48)


@cache
def on() -> Machine:
    return machine(CLUSTER)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Job, Uniform]:
    found = job(draw(st.sampled_from(NAMES)))
    tp = draw(st.sampled_from((1, 1, 2, 4)))
    dp = draw(st.sampled_from((1, 2, 3)))
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    chunks = SCHEDULES[schedule].chunks
    zero = draw(st.integers(0, 3))
    choice = Uniform(
        tp=tp,
        pp=draw(st.sampled_from((1, 2, 3, 4, 5))),
        dp=dp,
        cp=draw(st.sampled_from((1, 1, 2))),
        micro_batch=draw(st.sampled_from((1, 2, 4))),
        schedule=schedule,
        virtual_stages=chunks or draw(st.sampled_from((2, 3))),
        zero=zero,
        zero_group=dp if zero else 1,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        recompute=draw(st.sampled_from(("none", "full", "selective", "cheap-ops"))),
        cp_kind=draw(st.sampled_from(("ring", "all-gather", "ulysses"))),
    )
    assume(not list(violations(choice, found, CLUSTER)))
    return found, choice


@given(cases())
def test_rows_bound_the_simulation_and_pieces_sum(case: tuple[Job, Uniform]) -> None:
    job, choice = case
    prices = price(Columns.of([choice]), job, on())
    layout = spell_out(choice, job.graph, job.global_batch)
    found = estimate(job, CLUSTER, layout, on=on())
    assert prices.step_time_s[0] <= found.step_time_s * (1 + 1e-12)
    assert prices.needed_bytes[0] <= found.peak_needed_bytes * (1 + 1e-12)
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s, rel=1e-9)
    assert min(found.breakdown_s.values()) > -1e-9
