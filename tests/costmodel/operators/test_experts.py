"""Experts: what is sent, what is counted, and what a layout file and a row say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costmodel.batched.rows import stage_runs
from costmodel.layout.retention import body_presets
from costmodel.layout.strategy import Uniform, spell_out, split_layers
from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.operators.degrees import Degrees, routed_rows, sent_rows
from costmodel.operators.moe import distinct
from costmodel.operators.operator_cost import operator_price
from costmodel.runs.cells import Cells
from costmodel.runs.pricing import Questions
from costmodel.simulation.estimator import estimate
from costmodel.simulation.flops import convention, model_flops
from costmodel.simulation.serialization import LayoutFile, file_document, parse_file
from costmodel.stages.layout_cost import LayoutPricer
from profiles.errors import UnknownName
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.catalog import model
from profiles.models.job import Job
from profiles.models.param_count import parameters

ROW = {
    "model": "DeepSeekV3",
    "layers": "61",
    "hidden": "7168",
    "heads": "128",
    "ffn_hidden": "18432",
    "gated_mlp": "y",
    "tied_embeddings": "n",
    "vocab": "129280",
    "experts": "256",
    "experts_per_token": "8",
    "expert_ffn_hidden": "2048",
    "shared_experts": "1",
    "dense_layers": "3",
    "attention": "mla",
    "kind": "moe",
    "seq_len": "4096",
    "global_batch": "512",
    "micro_batch": "1",
    "gpus": "256",
    "tp": "1",
    "pp": "4",
    "dp": "64",
    "ep": "64",
    "virtual_stages": "4",
    "cluster": "dgx-h100",
    "precision": "bf16",
    "framework": "Megatron-Core",
}


def job(name: str, batch: int = 64) -> Job:
    found = model(name)
    return Job(model=name, spec=found.spec, seq_len=4096, global_batch=batch)


def test_flops_are_those_of_the_parameters_that_a_token_meets() -> None:
    """6·N with N the active ones but the embedding, which looks up."""
    for name in ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite"):
        asked, counts = job(name), parameters(model(name).spec)
        of_weights = 6.0 * (counts.active - counts.embedding) * asked.tokens
        attention = sum(
            12.0 * asked.tokens * 4096 * block.heads * block.head_dim * count
            for block, count in asked.graph.runs
        )
        found = model_flops(asked, convention("megatron"))
        assert found == pytest.approx(of_weights + attention, rel=2e-3)


@pytest.mark.parametrize(("ep", "k", "rows"), [(1, 8, 1.0), (8, 1, 1.0), (64, 8, 7.57)])
def test_a_token_goes_to_so_many_ranks(ep: int, k: int, rows: float) -> None:
    assert float(distinct(np.array(ep), k)) == pytest.approx(rows, rel=1e-3)


@pytest.mark.parametrize(
    ("tp", "split", "etp", "shared"),
    [(1, False, 2, 2), (2, False, 2, 1), (2, True, 2, 2), (2, False, 4, 2)],
)
def test_ranks_that_cut_experts_in_width_work_on_the_rows_of_all(
    tp: int, split: bool, etp: int, shared: int
) -> None:
    block = job("mixtral-8x7b").graph.block("expert-layer")
    degrees = Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(1),
        micro_batch=np.asarray(1),
        seq_len=4096,
        sequence_parallel=split,
        etp=np.asarray(etp),
    )
    assert routed_rows(block, degrees) == shared * sent_rows(block, degrees)


def test_a_heavy_head_takes_the_place_of_layers() -> None:
    """As Megatron-Core's pipeline layouts of DeepSeek-V3 cut it."""
    assert split_layers(61, 16, tail=4) == (*[4] * 15, 1)
    assert split_layers(94, 96) == (0, *[1] * 94, 0)
    assert sum(split_layers(61, 8, tail=4)) == 61


@pytest.mark.parametrize("name", ["deepseek-v3", "mixtral-8x7b", "deepseek-v2-lite"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8, 16, 27])
def test_runs_of_stages_hold_every_layer_once(name: str, stages: int) -> None:
    graph = job(name).graph
    runs = stage_runs(graph, np.array([stages]))
    assert sum(int(run.count[0]) for run in runs) == stages
    for block, count in graph.runs:
        held = [
            int(run.count[0]) * int(np.ravel(run.layers[block.name])[0]) for run in runs
        ]
        assert sum(held) == count
        assert min(held) >= 0


def test_a_layout_file_keeps_where_experts_lie() -> None:
    asked = job("mixtral-8x7b")
    choice = Uniform(tp=2, dp=8, ep=8, etp=2, sequence_parallel=True, zero_group=8)
    layout = spell_out(choice, asked.graph, 64)
    written = file_document(
        LayoutFile(
            job={"model": "mixtral-8x7b", "seq_len": 4096, "global_batch": 64},
            cluster="dgx-h100",
            gpus=16,
            profiles=(),
            layout=layout,
        )
    )
    assert parse_file(written).layout == layout
    found = estimate(asked, cluster("dgx-h100"), layout)
    assert found.breakdown_s["expert_comm"] > 0


def test_a_list_names_operators_that_some_layers_have() -> None:
    graph = job("deepseek-v3").graph
    found = body_presets("router,mlp_norm", graph)
    assert "router_out" not in found["layer"].recomputed
    assert "router_out" in found["expert-layer"].recomputed
    with pytest.raises(UnknownName, match="routr"):
        body_presets("routr", graph)


def asked(**changes: str | None) -> Any:
    cells = {k: v for k, v in {**ROW, **changes}.items() if v is not None}
    return Questions().question(Cells(text=cells))


def test_a_row_of_a_mixture_is_a_whole_question() -> None:
    found = asked()
    spec = found.job.spec
    assert (found.choice.ep, found.choice.etp) == (64, 1)
    assert spec.moe.first_layer == 3
    assert spec.mla == model("deepseek-v3").spec.mla  # type: ignore[union-attr]
    assert found.assumed["multi_token_heads"] == 1
    unnamed = asked(model="no such one").job.spec
    assert unnamed.multi_token_heads == 0
    assert unnamed.mla == spec.mla


def test_more_experts_parallel_than_ranks_is_said() -> None:
    found = asked(pp="8", dp="32", ep="64", virtual_stages="2")
    assert found.choice.ep == 32
    assert "more than the 32 ranks" in found.warnings[0]


@pytest.mark.parametrize("number", ["bf16", "fp8"])
def test_each_further_expert_costs_the_host_a_launch(number: str) -> None:
    """Of a grouped product, over an operator's, with 16 experts and with 4; in 8 bits
    its operands are quantised too."""
    on = machine(cluster("dgx-h100"), load_framework("megatron-core"))
    launch = on.framework.moe.launch
    if number == "fp8":
        launch += on.framework.moe.quantise_launch
    graph = job("qwen3-235b-a22b").graph
    block, one = next(pair[0] for pair in graph.runs), np.asarray(1)
    host_s = []
    for ep in (8, 32):
        degrees = Degrees(
            tp=one,
            cp=one,
            micro_batch=one,
            seq_len=4096,
            sequence_parallel=False,
            ep=np.asarray(ep),
        )
        price = operator_price(
            block.operator("mlp_up"), block, degrees, precision(number), on
        )
        host_s.append(float(price.forward.host_s) / on.framework.host.forward_s)
    assert host_s == pytest.approx([1 + 15 * launch, 1 + 3 * launch])


@pytest.mark.parametrize(
    ("name", "elements"), [("dispatch", 4), ("combine", 3 * 8 + 1)]
)
def test_rows_of_a_token_that_is_sent_once_are_sorted_once(
    name: str, elements: int
) -> None:
    """Copied by expert and sorted as they come: read and written twice; and back, eight
    rows read for one written. DeepEP sends tokens, whose rows are sorted where they
    arrive."""
    block = next(pair[0] for pair in job("qwen3-30b-a3b").graph.runs)
    one = np.asarray(1)
    degrees = Degrees(
        tp=one, cp=one, micro_batch=one, seq_len=4096, sequence_parallel=False
    )
    base = load_framework("megatron-core")
    twice_s, once_s = (
        float(
            operator_price(
                block.operator(name),
                block,
                degrees,
                precision("bf16"),
                machine(
                    cluster("dgx-h100"),
                    base.variant(moe={"sends_once": once}, host={"gap_us": 0.0}),
                ),
            ).forward.compute_s
        )
        for once in (False, True)
    )
    on = machine(cluster("dgx-h100"), base)
    moved = 4096 * 2048 * 2 * base.moe.traffic
    bandwidth = on.rates.traffic.fraction * on.device.memory_bytes_per_s
    launches = block.operator(name).kernels * on.rates.traffic.overhead_s
    rows = 8 if name == "dispatch" else 1
    assert twice_s == pytest.approx(rows * elements * moved / bandwidth + launches)
    assert twice_s - once_s == pytest.approx(8 * 2 * moved / bandwidth)


def test_gradients_of_experts_are_summed_over_the_ranks_that_hold_the_same() -> None:
    """With ep of all ranks each has its own; with none all are summed like the rest."""
    asked = job("mixtral-8x7b", batch=8)
    on = machine(cluster("dgx-h100"))
    apart, alike = (
        LayoutPricer(
            job=asked,
            layout=spell_out(Uniform(dp=8, ep=ep, zero=0), asked.graph, 8),
            machine=on,
        ).stages()[0]
        for ep in (8, 1)
    )
    experts = float(alike.expert_parameters)
    assert experts == pytest.approx(8 * float(apart.expert_parameters))
    share = (experts + float(alike.parameters)) / float(apart.parameters)
    assert float(alike.reduce_s) == pytest.approx(
        share * float(apart.reduce_s), rel=0.05
    )
