"""Saved activations against Korthikanti et al. (MLSys 2023), section 4 and Figure 7."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.layout.retention import preset
from costmodel.machine.assembly import machine
from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import tensor_bytes
from costmodel.stages.block_cost import atom, block_prices
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.decoder import decoder_graph
from profiles.models.graph import Block
from profiles.models.spec import DecoderSpec
from tests.support.rows import Obtained

S, B, T = 2048, 1, 8
# (heads, hidden) and, in % of the tensor-parallel baseline: sequence parallel,
# selective, both, full recompute (Figure 7, as Calculon's validation.py reads it).
FIGURE_7 = {
    "22b": (64, 6144, (66.84, 49.42, 16.18, 7.64)),
    "175b": (96, 12288, (62.04, 56.53, 18.49, 8.71)),
    "530b": (128, 20480, (58.31, 62.04, 20.27, 9.42)),
    "1t": (160, 25600, (58.31, 62.04, 20.27, 9.42)),
}


def layer(heads: int, hidden: int) -> Block:
    spec = DecoderSpec(
        layers=1,
        hidden=hidden,
        heads=heads,
        vocab=51200,
        ffn_hidden=4 * hidden,
        kv_heads=heads,
        head_dim=hidden // heads,
        max_positions=S,
        dropout=0.1,
    )
    return decoder_graph(spec).block("layer")


def saved_bytes(block: Block, recompute: str, *, tp: int, sp: bool) -> float:
    degrees = Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(1),
        micro_batch=np.asarray(B),
        seq_len=S,
        sequence_parallel=sp,
        flash_attention=False,
    )
    policy = precision("fp16")
    on = machine(cluster("dgx-a100-80gb"))
    assert block.entry is not None
    entry = tensor_bytes(block.entry, block, degrees, policy)
    prices = block_prices(block, degrees, policy, on)
    return float(atom(block, prices, preset(recompute, block), entry).saved_bytes)


@pytest.mark.parametrize("model", FIGURE_7)
def test_bytes_are_the_papers_formulas(model: str) -> None:
    a, h, _ = FIGURE_7[model]
    block, unit = layer(a, h), S * B * h
    scores = 5 * a * S / h
    expected = {
        ("none", 1, False): unit * (34 + scores),
        ("none", T, False): unit * (10 + 24 / T + scores / T),
        ("none", T, True): unit / T * (34 + scores),
        ("selective", T, False): unit * (10 + 24 / T),
        ("selective", T, True): unit * 34 / T,
        ("full", T, False): unit * 2,
        ("full", T, True): unit * 2 / T,
    }
    for (recompute, tp, sp), wanted in expected.items():
        found = saved_bytes(block, recompute, tp=tp, sp=sp)
        assert found == pytest.approx(wanted, rel=1e-9), (recompute, tp, sp)


@pytest.mark.row(
    "E13",
    "Figure 7: % of the baseline for sp, selective, both, full",
    expected="66.84, 49.42, 16.18, 7.64; 62.04, 56.53, 18.49, 8.71; "
    "58.31, 62.04, 20.27, 9.42 (0.15)",
)
@pytest.mark.parametrize("model", FIGURE_7)
def test_shares_of_figure_7(model: str, obtained: Obtained) -> None:
    a, h, percent = FIGURE_7[model]
    block = layer(a, h)
    base = saved_bytes(block, "none", tp=T, sp=False)
    found = [
        saved_bytes(block, recompute, tp=T, sp=sp) / base * 100
        for recompute, sp in (
            ("none", True),
            ("selective", False),
            ("selective", True),
            ("full", False),
        )
    ]
    obtained(", ".join(f"{one:.2f}" for one in found))
    assert found == pytest.approx(percent, abs=0.15)


def test_cheap_operators_of_a_llama_layer() -> None:
    """Yuan et al. (ATC 2024): 16sbh + 6sbf kept in full, 12sbh + 4sbf without norm and
    activation outputs (flash attention, SwiGLU, no dropout), but for the fp32 row
    statistics that flash attention keeps."""
    h, f, a = 4096, 11008, 32
    spec = DecoderSpec(
        layers=1,
        hidden=h,
        heads=a,
        vocab=32000,
        ffn_hidden=f,
        kv_heads=a,
        head_dim=h // a,
        gated_mlp=True,
        norm="rmsnorm",
        position="rotary",
    )
    block = decoder_graph(spec).block("layer")
    degrees = Degrees(
        tp=np.asarray(1),
        cp=np.asarray(1),
        micro_batch=np.asarray(1),
        seq_len=S,
        sequence_parallel=False,
    )
    prices = block_prices(
        block, degrees, precision("bf16"), machine(cluster("dgx-a100-80gb"))
    )
    statistics = 4 * a * S
    kept, cheap = (
        float(atom(block, prices, preset(name, block), np.zeros(())).saved_bytes)
        for name in ("none", "cheap-ops")
    )
    assert kept - statistics == S * (16 * h + 6 * f)
    assert cheap - statistics == S * (12 * h + 4 * f)
