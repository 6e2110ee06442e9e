"""What papers print as TFLOP/s and MFU, by the convention that each counts in."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from costmodel.runs.pricing import ask_runs
from costmodel.runs.table import read_runs
from costmodel.simulation.flops import CONVENTIONS, convention, model_flops
from costmodel.simulation.result import recomputed_flops
from profiles.errors import UnknownName
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec
from profiles.units import TFLOPS

A100_FLOPS = 312 * TFLOPS


def llama(layers: int, hidden: int, heads: int, ffn: int, vocab: int) -> DecoderSpec:
    return DecoderSpec(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn_hidden=ffn,
        vocab=vocab,
        gated_mlp=True,
        activation="silu",
        norm="rmsnorm",
        position="rotary",
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        tied_embeddings=False,
    )


# Hagemann et al. (2023), the best layout of two sheets: A100s, step seconds and MFU by
# 6N + 12LHQT with both tables of a vocabulary of 128,000.
SHEETS = [
    (llama(40, 5120, 40, 13824, 128_000), 64, 26.54, 0.706),
    (llama(80, 8192, 64, 22016, 128_000), 128, 79.31, 0.553),
]


@pytest.mark.parametrize(("spec", "gpus", "step_s", "mfu"), SHEETS)
def test_palm(spec: DecoderSpec, gpus: int, step_s: float, mfu: float) -> None:
    job = Job(model="llama", spec=spec, seq_len=2048, global_batch=2048)
    found = model_flops(job, convention("palm")) / (gpus * step_s * A100_FLOPS)
    assert found == pytest.approx(mfu, abs=0.0015)


def test_causal() -> None:
    """Yuan et al. (ATC 2024): Llama-7B, 12,288 tokens, 3,016 tokens/s per A800."""
    spec = llama(32, 4096, 32, 11008, 32_004)
    job = Job(model="llama", spec=spec, seq_len=12_288, global_batch=16)
    token = model_flops(job, convention("causal")) / job.tokens
    assert token * 3016 / A100_FLOPS == pytest.approx(0.477, abs=0.0006)


def test_conventions_differ_in_attention_and_norms_alone() -> None:
    """megatron − causal is half of attention: 3 · 2 · s · h of its 3 · 4 · s · h FLOPs
    a layer and token."""
    job = Job(model="gpt", spec=SHEETS[0][0], seq_len=2048, global_batch=1)
    full, half = (
        model_flops(job, CONVENTIONS[name]) for name in ("megatron", "causal")
    )
    assert full - half == pytest.approx(6 * 2048 * 5120 * 40 * job.tokens, rel=1e-12)


def test_another_name_is_refused() -> None:
    with pytest.raises(UnknownName, match="megatron"):
        convention("megatrn")


# What `flops_convention` of the published table starts with → convention, with or
# without what is recomputed, and how near the median row comes.
PRINTED = {
    "hardware, incl. recompute (Megatron 96": ("megatron", True, 2e-4),
    "hardware, incl. full recompute: 96": ("megatron", True, 1e-4),
    "model: 72BLsh^2": ("megatron", False, 1e-4),
    "model (Megatron num_floating_point": ("megatron", False, 1e-4),
    "model, full (non-causal) attention, Kor": ("megatron", False, 1e-3),
    "model (PaLM 6N+12LHQT": ("palm", False, 1e-3),
    "model (6N + 12*L*d*s": ("palm", False, 5e-3),
    "model, causal attention (half)": ("causal", False, 1e-3),
}


def test_published_tables_are_reproduced() -> None:
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        pytest.skip("MESHWRIGHT_DATA does not name the folder of measurements")
    ratios: dict[str, list[float]] = defaultdict(list)
    for item in ask_runs(read_runs(Path(folder) / "runs.csv")):
        measured = item.run.measured
        said = measured.get("flops_convention", "")
        start = next((text for text in PRINTED if said.startswith(text)), None)
        whole = {"step_time_s", "tflops_per_gpu"} <= measured.keys()
        frozen = "frozen" in said
        if not start or not whole or frozen or not item.question or not item.layout:
            continue
        name, again, _ = PRINTED[start]
        job, counted = item.question.job, CONVENTIONS[name]
        flops = model_flops(job, counted)
        if again:
            flops += recomputed_flops(job, item.layout, counted=counted)
        seconds = float(measured["step_time_s"]) * item.layout.gpus
        printed = float(measured["tflops_per_gpu"]) * TFLOPS
        ratios[start].append(flops / seconds / printed)
    assert set(ratios) == set(PRINTED)
    for start, found in ratios.items():
        assert median(found) == pytest.approx(1, abs=PRINTED[start][2]), start
