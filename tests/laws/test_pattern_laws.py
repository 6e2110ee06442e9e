"""Layers of several kinds: every cut holds each once, and is priced as it is cut."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.batched.pricing import price
from costmodel.batched.rows import stage_runs
from costmodel.layout.strategy import Columns, Uniform, spell_out
from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import load_framework
from costmodel.simulation.estimator import estimate
from costmodel.support.legality import violations
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.decoder import decoder_graph
from profiles.models.job import Job
from profiles.models.param_count import parameters
from profiles.models.spec import DecoderSpec, MoeSpec, RecurrenceSpec
from tests.oracles.bounds import step_time_bound_s

CLUSTER = cluster("dgx-h100")
MAMBA = RecurrenceSpec(
    kind="mamba-2", heads=16, head_dim=64, state=64, groups=8, conv_width=4, chunk=128
)
BARE = DecoderSpec(
    layers=1,
    hidden=512,
    heads=8,
    kv_heads=8,
    head_dim=64,
    ffn_hidden=2048,
    vocab=4096,
    norm="rmsnorm",
    position="none",
    window=256,
    recurrence=MAMBA,
    moe=MoeSpec(experts=8, experts_per_token=2, expert_ffn_hidden=512),
    pattern="M",
)
symbols = st.text("M*S-E", min_size=1, max_size=40).map(lambda some: "M" + some)


def mixed(pattern: str, layers: int | None = None) -> DecoderSpec:
    return replace(BARE, pattern=pattern, layers=layers or len(pattern))


@cache
def on() -> Machine:
    return machine(CLUSTER, load_framework("megatron-core"))


@given(pattern=symbols, stages=st.integers(1, 41))
def test_every_cut_holds_each_layer_once(pattern: str, stages: int) -> None:
    spec = mixed(pattern)
    assume(stages <= spec.layers)
    graph = decoder_graph(spec, "mixed")
    runs = stage_runs(graph, np.array([stages]))
    if graph.turn <= 1 or spec.layers % (stages * graph.turn) == 0:
        assert sum(int(run.count[0]) for run in runs) == stages
        for kind, count in graph.counts.items():
            held = [int(run.count[0]) * int(run.layers[kind][0]) for run in runs]
            assert sum(held) == count
            assert min(held) >= 0
    layout = spell_out(Uniform(pp=stages), graph, stages)
    parts = [name for stage in layout.stages for name in stage.layers]
    assert parts == list(graph.layer_names)


@given(pattern=symbols, more=st.integers(0, 9))
def test_a_pattern_goes_on_over_and_over(pattern: str, more: int) -> None:
    spec = mixed(pattern, len(pattern) + more)
    graph = decoder_graph(spec, "mixed")
    assert graph.body == spec.layers
    for layer in range(more):
        assert (
            graph.layer_blocks[str(len(pattern) + layer)]
            is graph.layer_blocks[str(layer % len(pattern))]
        )


@given(pattern=symbols)
def test_parameters_are_those_of_the_layers(pattern: str) -> None:
    """Two models' worth of layers, less one's ends."""
    once, twice = (parameters(mixed(pattern, count * len(pattern))) for count in (1, 2))
    ends = once.embedding + once.final_norm + once.head
    assert twice.total - ends == 2 * (once.total - ends)


@settings(max_examples=25)
@given(
    pattern=symbols,
    tp=st.sampled_from((1, 2, 4)),
    pp=st.sampled_from((1, 2, 3, 4, 8)),
    dp=st.sampled_from((1, 2, 4)),
    zero=st.integers(0, 3),
    recompute=st.sampled_from(("none", "selective", "full", "cheap-ops")),
    virtual=st.sampled_from((1, 1, 2)),
)
def test_rows_bound_the_simulation_of_any_pattern(
    pattern: str, tp: int, pp: int, dp: int, zero: int, recompute: str, virtual: int
) -> None:
    spec = mixed(pattern)
    asked = Job(model="mixed", spec=spec, seq_len=2048, global_batch=48)
    choice = Uniform(
        tp=tp,
        pp=pp,
        dp=dp,
        zero=zero,
        zero_group=dp if zero else 1,
        sequence_parallel=tp > 1,
        recompute=recompute,
        schedule="interleaved" if virtual > 1 else "1f1b",
        virtual_stages=virtual,
    )
    assume(not list(violations(choice, asked, CLUSTER)))
    turn, stages = asked.graph.turn, pp * virtual
    assume(turn <= 1 or spec.layers % (stages * turn) == 0)
    prices = price(Columns.of([choice]), asked, on())
    layout = spell_out(choice, asked.graph, asked.global_batch)
    found = estimate(asked, CLUSTER, layout, on=on())
    column_s = float(prices.step_time_s[0])
    bound_s = step_time_bound_s(asked, layout, on())
    assert column_s <= found.step_time_s * (1 + 1e-12)
    if virtual == 1:  # of interleaved stages rows know the busiest rank, too
        assert column_s <= bound_s * (1 + 1e-12)
        assert column_s > 0.7 * found.step_time_s
    assert float(prices.needed_bytes[0]) <= found.peak_needed_bytes * (1 + 1e-12)


@pytest.mark.parametrize(
    "name", ["nemotron-h-8b", "nemotron-3-nano", "qwen3-next", "jamba", "gpt-oss-20b"]
)
def test_stages_hold_what_the_catalogue_says(name: str) -> None:
    """As many layers of each kind as the sources print."""
    counts = {
        "nemotron-h-8b": {"mamba-2-layer": 24, "mlp-layer": 24, "attention-layer": 4},
        "nemotron-3-nano": {
            "mamba-2-layer": 23,
            "expert-layer": 23,
            "attention-layer": 6,
        },
        "qwen3-next": {"expert-gated-delta-layer": 36, "expert-layer": 12},
        "jamba": {"mamba-1-layer": 12, "expert-mamba-1-layer": 16, "layer": 4},
        "gpt-oss-20b": {"expert-window-layer": 12, "expert-layer": 12},
    }[name]
    assert model(name).job().graph.counts == counts
