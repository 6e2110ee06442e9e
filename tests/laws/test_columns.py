"""Columns, closed form and simulation: one price, three speeds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.batched.pricing import price
from costmodel.layout.strategy import RECOMPUTES, Columns, Uniform, spell_out
from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import frameworks
from costmodel.schedule.schedules import SCHEDULES
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.support.legality import violations
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec
from tests.oracles.bounds import step_time_bound_s
from tests.support.pipelines import WHOLE

CLUSTER = cluster("dgx-a100-80gb")


@cache
def job(name: str = "gpt-13b") -> Job:
    found = model(name)
    return Job(model=name, spec=found.spec, seq_len=found.seq_len, global_batch=192)


@cache
def on(framework: str) -> Machine:
    return machine(CLUSTER, frameworks()[framework])


@st.composite
def choices(draw: st.DrawFn) -> Uniform:
    tp = draw(st.sampled_from((1, 2, 4, 8)))
    dp = draw(st.sampled_from((1, 2, 3, 4, 8)))
    zero = draw(st.integers(0, 3))
    groups = [group for group in range(1, dp + 1) if dp % group == 0]
    virtual = draw(st.sampled_from((1, 1, 2, 4)))
    flat = st.sampled_from(("1f1b", "gpipe"))
    choice = Uniform(
        tp=tp,
        pp=draw(st.sampled_from((1, 2, 3, 4, 5, 7, 8))),
        dp=dp,
        cp=draw(st.sampled_from((1, 1, 2, 4))),
        micro_batch=draw(st.sampled_from((1, 2, 4))),
        schedule="interleaved" if virtual > 1 else draw(flat),
        virtual_stages=virtual,
        zero=zero,
        zero_group=draw(st.sampled_from(groups)) if zero else 1,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        recompute=draw(
            st.sampled_from((*RECOMPUTES, "mlp_up", "activation,input_norm=0.5"))
        ),
        cp_kind=draw(st.sampled_from(("ring", "all-gather", "ulysses"))),
    )
    assume(not list(violations(choice, job(), CLUSTER)))
    return choice


def simulated(choice: Uniform, where: Machine) -> Estimate:
    layout = spell_out(choice, job().graph, job().global_batch)
    return estimate(job(), CLUSTER, layout, on=where)


def bounded(choice: Uniform, where: Machine) -> tuple[Estimate, float, float]:
    """The simulation of *choice*, and the seconds and bytes of its columns below it."""
    prices = price(Columns.of([choice]), job(), where)
    layout = spell_out(choice, job().graph, job().global_batch)
    column_s = float(prices.step_time_s[0])
    assert column_s == pytest.approx(step_time_bound_s(job(), layout, where), rel=1e-12)
    found = simulated(choice, where)
    assert column_s <= found.step_time_s * (1 + 1e-12)
    column_bytes = float(prices.needed_bytes[0])
    assert column_bytes <= found.peak_needed_bytes * (1 + 1e-12)
    return found, column_s, column_bytes


@given(choice=choices(), framework=st.sampled_from(sorted(frameworks())))
def test_columns_equal_the_closed_form_and_bound_the_simulation(
    choice: Uniform, framework: str
) -> None:
    found, _, column_bytes = bounded(choice, on(framework))
    assert column_bytes == pytest.approx(found.peak_needed_bytes, rel=0.02)


def test_an_end_that_a_pipeline_of_one_stage_lacks_costs_nothing() -> None:
    """Of a tied table beside few small layers: an end of its own would gather it in
    one message, which takes longer than the whole model's."""
    spec = DecoderSpec(
        layers=4,
        hidden=128,
        heads=1,
        kv_heads=1,
        head_dim=128,
        ffn_hidden=512,
        vocab=50257,
        max_positions=128,
    )
    small = Job(model="small", spec=spec, seq_len=128, global_batch=1)
    for zero in range(4):
        choice = Uniform(cp=2, zero=zero, precision="tf32")
        layout = spell_out(choice, small.graph, small.global_batch)
        (column_s,) = price(Columns.of([choice]), small, on("meshwright")).step_time_s
        closed_s = step_time_bound_s(small, layout, on("meshwright"))
        found = estimate(small, CLUSTER, layout, on=on("meshwright"))
        assert column_s == pytest.approx(closed_s, rel=1e-12)
        assert column_s <= found.step_time_s * (1 + 1e-12)


@st.composite
def split_or_in_pairs(draw: st.DrawFn) -> Uniform:
    name = draw(st.sampled_from([one for one in SCHEDULES if one not in WHOLE]))
    chunks = SCHEDULES[name].chunks
    choice = replace(
        draw(choices()),
        pp=draw(st.sampled_from((1, 2, 4, 5, 8))),
        micro_batch=draw(st.sampled_from((1, 2))),
        schedule=name,
        virtual_stages=chunks or draw(st.sampled_from((2, 4))),
    )
    assume(not list(violations(choice, job(), CLUSTER)))
    return choice


@given(choice=split_or_in_pairs(), framework=st.sampled_from(sorted(frameworks())))
def test_what_is_split_or_in_pairs_is_bounded_too(
    choice: Uniform, framework: str
) -> None:
    found, column_s, _ = bounded(choice, on(framework))
    assert column_s >= found.step_time_s * 0.4
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s, rel=1e-9)
    assert min(found.breakdown_s.values()) > -1e-9


@given(st.lists(choices(), min_size=2, max_size=6))
def test_a_row_does_not_depend_on_its_neighbours(rows: list[Uniform]) -> None:
    where = on("meshwright")
    together = price(Columns.of(rows), job(), where)
    alone = [price(Columns.of([row]), job(), where) for row in rows]
    assert together.step_time_s == pytest.approx(
        [one.step_time_s[0] for one in alone], rel=1e-12
    )
    assert together.needed_bytes == pytest.approx(
        [one.needed_bytes[0] for one in alone], rel=1e-12
    )


@given(choices())
def test_the_breakdown_and_the_memory_pieces_sum(choice: Uniform) -> None:
    found = simulated(choice, on("meshwright"))
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s, rel=1e-9)
    assert min(found.breakdown_s.values()) > -1e-9
    for entry in found.document()["memory"]:
        pieces = [
            value for key, value in entry.items() if key not in ("stage", "total")
        ]
        assert sum(pieces) == pytest.approx(entry["total"], rel=1e-12)


def test_the_bound_is_tight() -> None:
    """Within 2 % of the simulation for 90 % of random candidates (map, laws)."""
    rng = np.random.default_rng(0)
    where = on("meshwright")
    ratios: list[float] = []
    while len(ratios) < 120:
        tp, pp = int(rng.choice([1, 2, 4, 8])), int(rng.choice([1, 2, 4, 5, 8, 10]))
        virtual = int(rng.choice([1, 1, 2]))
        choice = Uniform(
            tp=tp,
            pp=pp,
            dp=int(rng.choice([1, 2, 4, 8])),
            micro_batch=int(rng.choice([1, 2, 4])),
            schedule="interleaved" if virtual > 1 else "1f1b",
            virtual_stages=virtual,
            zero=0,
            recompute=str(rng.choice(["none", "full"])),
        )
        if list(violations(choice, job(), CLUSTER)):
            continue
        bound_s = float(price(Columns.of([choice]), job(), where).step_time_s[0])
        ratios.append(bound_s / simulated(choice, where).step_time_s)
    assert np.quantile(ratios, 0.1) > 0.98
    assert max(ratios) <= 1 + 1e-12


@given(choices())
def test_slow_crossings_keep_the_bound_a_bound(choice: Uniform) -> None:
    """Where some boundaries of a pipeline cross nodes of a slow network."""
    where = machine(cluster("p3.16xlarge"))
    choice = replace(choice, flash_attention=False, precision="fp16")
    layout = spell_out(choice, job().graph, job().global_batch)
    bound_s = float(price(Columns.of([choice]), job(), where).step_time_s[0])
    assert bound_s == pytest.approx(step_time_bound_s(job(), layout, where), rel=1e-12)
    found = estimate(job(), where.cluster, layout, on=where)
    assert bound_s <= found.step_time_s * (1 + 1e-12)
