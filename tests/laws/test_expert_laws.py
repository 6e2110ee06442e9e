"""Experts: column, closed form and simulation agree; more work is never faster."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.batched.pricing import price
from costmodel.layout.strategy import Columns, Uniform, spell_out
from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import frameworks
from costmodel.operators.degrees import Degrees, load
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.simulation.question import width_over
from costmodel.support.legality import violations
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.decoder import decoder_graph
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec, MoeSpec
from tests.oracles.bounds import step_time_bound_s

CLUSTER = cluster("dgx-h100")
MIXTURES = ("mixtral-8x7b", "deepseek-v3", "deepseek-v2-lite", "llama4-maverick")
HYBRIDS = ("qwen3-next-80b-a3b", "nemotron-3-super", "jamba-v0.1")


@cache
def job(name: str) -> Job:
    found = model(name)
    return Job(model=name, spec=found.spec, seq_len=4096, global_batch=192)


@cache
def on(framework: str = "megatron-core") -> Machine:
    return machine(CLUSTER, frameworks()[framework])


@st.composite
def choices(draw: st.DrawFn, name: str) -> Uniform:
    tp = draw(st.sampled_from((1, 2, 4)))
    cp = draw(st.sampled_from((1, 1, 2)))
    dp = draw(st.sampled_from((1, 2, 4, 8)))
    ep = draw(st.sampled_from([e for e in (1, 2, 4, 8, 16) if tp * cp * dp % e == 0]))
    zero = draw(st.integers(0, 3))
    virtual = draw(st.sampled_from((1, 1, 2, 4)))
    groups = [group for group in (1, 2, 4, 8) if dp % group == 0]
    choice = Uniform(
        tp=tp,
        pp=draw(st.sampled_from((1, 2, 3, 4, 8))),
        dp=dp,
        cp=cp,
        ep=ep,
        etp=width_over(tp, ep),
        micro_batch=draw(st.sampled_from((1, 2))),
        schedule="interleaved" if virtual > 1 else "1f1b",
        virtual_stages=virtual,
        zero=zero,
        zero_group=draw(st.sampled_from(groups)) if zero else 1,
        sequence_parallel=tp > 1,
        recompute=draw(st.sampled_from(("none", "selective", "cheap-ops", "full"))),
    )
    assume(not list(violations(choice, job(name), CLUSTER)))
    return choice


def simulated(name: str, choice: Uniform, where: Machine) -> Estimate:
    layout = spell_out(choice, job(name).graph, job(name).global_batch)
    return estimate(job(name), CLUSTER, layout, on=where)


@pytest.mark.parametrize("name", [*MIXTURES, *HYBRIDS])
@settings(max_examples=15)
@given(data=st.data())
def test_columns_bound_the_simulation(name: str, data: st.DataObject) -> None:
    choice = data.draw(choices(name))
    where = on(data.draw(st.sampled_from(("megatron-core", "megatron-lm", "fsdp2"))))
    prices = price(Columns.of([choice]), job(name), where)
    column_s = float(prices.step_time_s[0])
    found = simulated(name, choice, where)
    assert column_s <= found.step_time_s * (1 + 1e-12)
    column_bytes = float(prices.needed_bytes[0])
    assert column_bytes <= found.peak_needed_bytes * (1 + 1e-12)
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s, rel=1e-9)
    assert min(found.breakdown_s.values()) > -1e-9
    alternates = len(job(name).graph.runs) > 2
    if choice.virtual_stages == 1 and not alternates:
        layout = spell_out(choice, job(name).graph, job(name).global_batch)
        bound_s = step_time_bound_s(job(name), layout, where)
        assert column_s == pytest.approx(bound_s, rel=1e-12)
        assert column_bytes == pytest.approx(found.peak_needed_bytes, rel=0.02)


@settings(max_examples=10)
@given(st.data())
def test_a_row_does_not_depend_on_its_neighbours(data: st.DataObject) -> None:
    name = "deepseek-v3"
    rows = [data.draw(choices(name)) for _ in range(3)]
    together = price(Columns.of(rows), job(name), on())
    alone = [price(Columns.of([row]), job(name), on()) for row in rows]
    assert together.step_time_s == pytest.approx(
        [one.step_time_s[0] for one in alone], rel=1e-12
    )
    assert together.needed_bytes == pytest.approx(
        [one.needed_bytes[0] for one in alone], rel=1e-12
    )


@given(data=st.data(), more=st.floats(1.0, 4.0))
def test_more_imbalance_is_never_faster(data: st.DataObject, more: float) -> None:
    name = "mixtral-8x7b"
    choice = data.draw(choices(name))
    even = simulated(name, choice, on())
    uneven = simulated(name, choice, replace(on(), imbalance=more))
    assert uneven.step_time_s >= even.step_time_s * (1 - 1e-12)
    assert uneven.peak_memory_bytes >= even.peak_memory_bytes * (1 - 1e-12)
    if choice.ep == 1:  # one rank has all experts, busy or not
        assert uneven.step_time_s == pytest.approx(even.step_time_s, rel=1e-12)


@given(
    ep=st.sampled_from((1, 2, 4, 8)),
    imbalance=st.floats(1.0, 8.0),
)
def test_the_busiest_rank_has_between_the_mean_and_the_busiest_expert(
    ep: int, imbalance: float
) -> None:
    block = job("mixtral-8x7b").graph.block("expert-layer")
    degrees = Degrees(
        tp=np.asarray(1),
        cp=np.asarray(1),
        micro_batch=np.asarray(1),
        seq_len=4096,
        sequence_parallel=False,
        ep=np.asarray(ep),
        imbalance=imbalance,
    )
    found = float(load(block, degrees))
    assert 1 - 1e-12 <= found <= imbalance * (1 + 1e-12)
    if ep == 8:
        assert found == pytest.approx(imbalance)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_one_expert_of_the_same_width_is_nearly_an_mlp(tp: int) -> None:
    """The router, the permutation and its launches are what it costs more: the smaller
    a rank's products, the larger a share."""
    dense = model("llama3-8b").spec
    assert isinstance(dense, DecoderSpec)
    moe = MoeSpec(experts=1, experts_per_token=1, expert_ffn_hidden=dense.ffn_hidden)
    choice = Uniform(
        tp=tp, dp=8 // tp, etp=1, sequence_parallel=tp > 1, micro_batch=1, zero=0
    )
    seconds, gibibytes = [], []
    for spec, etp in ((dense, 1), (replace(dense, moe=moe), tp)):
        asked = Job(model="one", spec=spec, seq_len=8192, global_batch=64)
        layout = spell_out(replace(choice, etp=etp), asked.graph, 64)
        found = estimate(asked, CLUSTER, layout, on=on())
        seconds.append(found.breakdown_s["compute"] + found.breakdown_s["tensor_comm"])
        seconds[-1] += found.breakdown_s["expert_comm"]
        gibibytes.append(float(found.memory[0].optimizer))
    most = {1: 1.16, 2: 1.16, 4: 1.2, 8: 1.35}
    assert 1.0 < seconds[1] / seconds[0] < most[tp]
    assert gibibytes[1] == pytest.approx(gibibytes[0], rel=1e-3)


def test_experts_shard_over_the_ranks_that_hold_the_same_ones() -> None:
    """18 bytes an expert parameter where ep takes all of data parallelism."""
    asked = job("mixtral-8x7b")
    graph = decoder_graph(asked.spec)  # type: ignore[arg-type]
    block = graph.block("expert-layer")
    one = 3 * block.extents["hidden"] * block.extents["expert_ffn"]
    held = []
    for ep in (1, 2, 4, 8):
        choice = Uniform(dp=8, ep=ep, zero=1, zero_group=8)
        layout = spell_out(choice, asked.graph, asked.global_batch)
        found = estimate(asked, CLUSTER, layout, on=on()).memory[0]
        held.append(float(found.optimizer))
        weights = float(found.parameters) + float(found.gradients)
        experts = 32 * 8 // ep * one
        assert weights >= experts * 6  # bf16 weights, fp32 gradients
    # Whoever holds fewer experts shards them over as many fewer ranks.
    assert held == pytest.approx([held[0]] * 4, rel=1e-12)
    alone = 32 * one * 12  # masters and moments of the one expert a rank of ep 8 has
    assert held[-1] >= alone


def test_expert_parallelism_costs_what_crosses_the_network() -> None:
    """Within a node the exchange is cheap; over nodes it is not, unless each token
    goes but once to each."""
    asked = job("deepseek-v3")
    inside = Uniform(dp=64, pp=1, ep=8, zero=0)
    across = replace(inside, ep=64)
    near, far = (
        simulated("deepseek-v3", one, on("megatron-lm")).breakdown_s["expert_comm"]
        for one in (inside, across)
    )
    once = simulated("deepseek-v3", across, on()).breakdown_s["expert_comm"]
    assert near < far
    assert once < far
    assert asked.graph.tail == 4
