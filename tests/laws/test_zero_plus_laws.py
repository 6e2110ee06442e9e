"""ZeRO++: one price in columns, closed form and simulation, and what it never does."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.batched.pricing import price
from costmodel.layout.offload import PLAIN, ZeroPlus
from costmodel.layout.strategy import Columns, Uniform, spell_out, uniform_of
from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import frameworks
from costmodel.schedule.schedules import SCHEDULES
from costmodel.simulation.estimator import estimate
from costmodel.simulation.serialization import LayoutFile, file_document, parse_file
from costmodel.support.legality import violations
from profiles.hardware.catalog import cluster
from profiles.hardware.clusters import Figure
from profiles.models.catalog import model
from profiles.models.job import Job
from tests.oracles.bounds import step_time_bound_s
from tests.support.pipelines import WHOLE

CLUSTER = cluster("dgx-a100-80gb")
EXACT = 1e-12


@cache
def job() -> Job:
    found = model("gpt-13b")
    return Job(
        model="gpt-13b", spec=found.spec, seq_len=found.seq_len, global_batch=192
    )


@cache
def on(framework: str) -> Machine:
    return machine(CLUSTER, frameworks()[framework])


@st.composite
def choices(draw: st.DrawFn) -> Uniform:
    tp, dp = draw(st.sampled_from((1, 2, 8))), draw(st.sampled_from((1, 2, 8, 12, 24)))
    cp = draw(st.sampled_from((1, 1, 2)))
    schedule = draw(st.sampled_from(("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v")))
    chunks = SCHEDULES[schedule].chunks or (2 if schedule == "interleaved" else 1)
    sizes = [size for size in range(1, dp * cp + 1) if dp * cp % size == 0]
    choice = Uniform(
        tp=tp,
        pp=draw(st.sampled_from((1, 2, 4))),
        dp=dp,
        cp=cp,
        micro_batch=draw(st.sampled_from((1, 2))),
        schedule=schedule,
        virtual_stages=chunks,
        zero=3,
        zero_group=dp,
        sequence_parallel=tp > 1,
        recompute=draw(st.sampled_from(("none", "full"))),
        zero_plus=ZeroPlus(
            quantized_weights=draw(st.booleans()),
            hpz_partition_size=draw(st.sampled_from(sizes)),
            quantized_gradients=draw(st.booleans()),
        ),
    )
    assume(not list(violations(choice, job(), CLUSTER)))
    return choice


@given(choice=choices(), framework=st.sampled_from(sorted(frameworks())))
def test_columns_equal_the_closed_form_and_bound_the_simulation(
    choice: Uniform, framework: str
) -> None:
    where = on(framework)
    layout = spell_out(choice, job().graph, job().global_batch)
    prices = price(Columns.of([choice]), job(), where)
    column_s, column_bytes = prices.step_time_s[0], prices.needed_bytes[0]
    assert column_s == pytest.approx(step_time_bound_s(job(), layout, where), rel=EXACT)
    found = estimate(job(), CLUSTER, layout, on=where)
    assert column_s <= found.step_time_s * (1 + EXACT)
    assert column_bytes <= found.peak_needed_bytes * (1 + EXACT)
    if choice.schedule in WHOLE:
        assert column_bytes == pytest.approx(found.peak_needed_bytes, rel=0.02)
    parts = found.breakdown_s.values()
    assert sum(parts) == pytest.approx(found.step_time_s, rel=1e-9)
    assert min(parts) > -1e-9


@given(choice=choices())
def test_a_layout_says_it_in_every_form(choice: Uniform) -> None:
    layout = spell_out(choice, job().graph, job().global_batch)
    file = LayoutFile(
        job={"model": "gpt-13b", "seq_len": job().seq_len, "global_batch": 192},
        cluster="dgx-a100-80gb",
        gpus=choice.gpus,
        profiles=(),
        layout=layout,
    )
    text = json.dumps(file_document(file))
    assert parse_file(json.loads(text)).layout == layout
    assert ("zero_quantized" in text) == bool(
        choice.zero_plus.quantized_weights or choice.zero_plus.quantized_gradients
    )
    assert ("zero_hpz" in text) == (choice.zero_plus.hpz_partition_size > 1)
    assert uniform_of(layout, job().graph) == choice
    columns = Columns.of([choice])
    assert columns.choice(0) == choice


@given(choice=choices(), gigabits=st.sampled_from((0.001, 0.1, 1.0)))
def test_it_never_loses_on_slow_links(choice: Uniform, gigabits: float) -> None:
    """Where what crosses nodes is nearly all there is, and a second copy lies in one:
    what spans a node and a half of 8 GPUs has fewer of its network."""
    slow = Figure(value=gigabits, unit="Gbit/s", source="slow")
    where = machine(CLUSTER.with_bandwidth(inter=slow), frameworks()["megatron-core"])
    asked, plain = (
        price(Columns.of([one]), job(), where)
        for one in (choice, replace(choice, zero_plus=PLAIN))
    )
    domain, size = where.island.domain, choice.zero_plus.hpz_partition_size
    if choice.tp * size <= domain < choice.dp * choice.cp * choice.tp:
        assert asked.step_time_s[0] <= plain.step_time_s[0] * (1 + 1e-3)
    assert asked.needed_bytes[0] >= plain.needed_bytes[0]
