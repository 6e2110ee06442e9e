"""Peak memory of published runs, each with its source and tolerance, GiB.

SimuMax      its validation runs on eight B200s (Moore Threads, 2025): allocated
torchtitan   docs/performance.md (2024), Llama 3.1 8B on H100s of 96 GB: reserved
BigScience   chronicles of the BLOOM prequel (2022), A100s of 80 GB: nvidia-smi
MosaicML     llm-foundry's throughput table (2023): what fits
InternEvo    InternLM's performance tables (v0.2.1, 2023), A800s and A100s of 80 GB
AMP          real trials (NeurIPS 2022), T4s of 16 GB: what fits
"""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.runs.pricing import Price, price_runs
from costmodel.runs.table import Run
from profiles.units import GiB

LLAMA = {"gated_mlp": "y", "tied_embeddings": "n", "vocab": "128256", "kv_heads": "8"}
SHAPES = {  # layers, hidden, heads, ffn
    "70b": (12, 8192, 64, 28672),
    "405b": (4, 16384, 128, 53248),
    "8b": (32, 4096, 32, 14336),
}
INTERNLM: dict[str, Any] = {
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "ffn_hidden": 11008,
    "vocab": 103168,
    "gated_mlp": "y",
    "tied_embeddings": "n",
    "seq_len": 2048,
    "device": "A800-SXM-80GB",
    "gpus_per_node": 8,
    "intra_node_gb_per_s": 200,
    "inter_node_gbit_per_s": 800,
    "precision": "bf16",
    "framework": "InternEvo",
}
DEEPSEEK: dict[str, Any] = {  # DeepSeek-V2, of 4 layers
    "layers": 4,
    "hidden": 5120,
    "heads": 128,
    "ffn_hidden": 12288,
    "vocab": 102400,
    "experts": 160,
    "experts_per_token": 6,
    "expert_ffn_hidden": 1536,
    "shared_experts": 2,
    "dense_layers": 1,
    "attention": "mla",
}
# shape, tp, pp, cp, sequence length → GiB allocated
SIMUMAX = {
    ("70b", 1, 2, 1, 4096): 66.55,
    ("70b", 2, 1, 1, 4096): 60.68,
    ("70b", 8, 1, 1, 4096): 28.29,
    ("405b", 1, 2, 1, 4096): 87.08,
    ("405b", 2, 1, 1, 4096): 81.59,
    ("405b", 8, 1, 1, 4096): 38.57,
    ("405b", 1, 1, 8, 32768): 139.22,
    ("405b", 2, 1, 4, 131072): 118.13,
}


def priced(**cells: Any) -> Price:
    texts = {name: str(cell) for name, cell in cells.items()}
    (found,) = price_runs([Run(row=0, asked=texts, measured={}, kept={})])
    assert found.price is not None, found.error
    return found.price


def llama(shape: str, **cells: Any) -> Price:
    names = ("layers", "hidden", "heads", "ffn_hidden")
    sizes = dict(zip(names, SHAPES[shape], strict=True))
    return priced(**{**LLAMA, **sizes, "precision": "bf16", **cells})


@pytest.mark.parametrize("row", SIMUMAX, ids=str)
def test_megatron_with_transformer_engine(row: tuple[str, int, int, int, int]) -> None:
    """Within 2 %: before the dummy gradients it was 7 %."""
    shape, tp, pp, cp, seq_len = row
    found = llama(
        shape,
        cluster="dgx-b200",
        gpus=8,
        tp=tp,
        pp=pp,
        cp=cp,
        zero=1,
        sequence_parallel="y" if tp > 1 else "n",
        seq_len=seq_len,
        micro_batch=1,
        global_batch=4 * 8 // (tp * pp * cp),
        recompute="none",
        framework="Megatron-LM 23e00ed (TE 2.11), comm overlap off",
    )
    assert found.peak_bytes["allocated"] / GiB == pytest.approx(SIMUMAX[row], rel=0.02)


@pytest.mark.parametrize(("pp", "ep", "measured"), [(1, 8, 45.63), (2, 4, 44.7)])
def test_experts_share_a_dummy_gradient(pp: int, ep: int, measured: float) -> None:
    """Within 1 %; with a dummy of the head's size and two copies of 16-bit logits it
    was 2.6 and 3.3 % more."""
    found = priced(
        **DEEPSEEK,
        cluster="dgx-b200",
        gpus=8,
        tp=1,
        pp=pp,
        ep=ep,
        zero=1,
        seq_len=4096,
        micro_batch=1,
        global_batch=4 * 8 // pp,
        recompute="none",
        precision="bf16",
        framework="Megatron-LM 23e00ed (TE 2.11), comm overlap off",
    )
    assert found.peak_bytes["allocated"] / GiB == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize(
    ("gpus", "seq_len", "micro_batch", "recompute", "measured"),
    [
        (8, 8192, 2, "op", 71.71),
        (128, 8192, 2, "op", 57.74),
        (8, 32768, 1, "full", 78.14),
    ],
)
def test_torchtitan_compiled(
    gpus: int, seq_len: int, micro_batch: int, recompute: str, measured: float
) -> None:
    """Sharded fp32 weights, half of the products kept, three fp32 logits; 7 %."""
    how = {"recompute": "full"}
    if recompute == "op":
        how = {"recompute_detail": "selective (op-level SAC)"}
    found = llama(
        "8b",
        device="H100-SXM-96GB",
        gpus_per_node=8,
        intra_node_gb_per_s=450,
        inter_node_gbit_per_s=3200,
        gpus=gpus,
        seq_len=seq_len,
        micro_batch=micro_batch,
        global_batch=micro_batch * gpus,
        zero=3,
        framework="torchtitan compile",
        **how,
    )
    assert found.peak_bytes["reserved"] / GiB == pytest.approx(measured, rel=0.07)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "precision", "tp", "pp", "gpus", "size", "measured"),
    [
        (8, 14400, 96, "fp16", 8, 1, 8, 1, 62.4),
        (80, 14400, 96, "fp16", 8, 10, 320, 1, 32.6),
        (80, 14400, 96, "fp16", 8, 10, 320, 8, 70.78),
        (72, 14336, 64, "fp16", 8, 2, 384, 1, 60.54),
        (106, 12288, 64, "bf16", 4, 12, 384, 2, 62.4),
        (70, 14336, 64, "bf16", 8, 12, 384, 2, 37.25),
    ],
)
def test_bloom_prequel(
    layers: int,
    hidden: int,
    heads: int,
    precision: str,
    tp: int,
    pp: int,
    gpus: int,
    size: int,
    measured: float,
) -> None:
    """ZeRO-1 keeps 4 + 16/d bytes a parameter in fp16 and 8 + 12/d in bf16; 7 %."""
    found = priced(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocab=250000,
        seq_len=2048,
        cluster="dgx-a100-80gb",
        gpus=gpus,
        tp=tp,
        pp=pp,
        zero=1,
        micro_batch=size,
        global_batch=2048 if gpus != 384 or pp == 12 else 2016,
        precision=precision,
        recompute="full",
        attention_kernel="fused-softmax",
        framework="Megatron-DeepSpeed",
    )
    assert found.peak_bytes["device"] / GiB == pytest.approx(measured, rel=0.07)


def test_ten_sequences_of_a_1_3b_model_fit_40_gb() -> None:
    """MPT-1b on A100s of 40 GB, FSDP, no recompute, micro-batches of 10."""
    found = priced(
        layers=24,
        hidden=2048,
        heads=16,
        vocab=50368,
        seq_len=2048,
        device="A100-SXM-40GB",
        gpus_per_node=8,
        intra_node_gb_per_s=300,
        inter_node_gbit_per_s=1600,
        gpus=64,
        zero=3,
        micro_batch=10,
        global_batch=640,
        precision="bf16",
        recompute="none",
        framework="Composer/PyTorch FSDP",
    )
    assert found.fits


@pytest.mark.parametrize(
    ("gpus", "tp", "pp", "zero", "measured"),
    [
        (3, 1, 1, 3, 67.06),
        (4, 1, 1, 3, 52.15),
        (6, 1, 1, 3, 36.32),
        (6, 2, 1, 3, 35.39),
        (4, 4, 1, 1, 56.81),
        (4, 1, 4, 1, 64.26),
    ],
)
def test_internevo_peaks_in_the_step(
    gpus: int, tp: int, pp: int, zero: int, measured: float
) -> None:
    """The step's copies and temporaries, 28 bytes a parameter; within 8 %, and without
    them 11 to 31 % too little."""
    found = priced(
        **INTERNLM,
        recompute="full",
        gpus=gpus,
        tp=tp,
        pp=pp,
        zero=zero,
        micro_batch=1,
        global_batch=4 * gpus // (tp * pp),
    )
    assert found.peak_bytes["device"] / GiB == pytest.approx(measured, rel=0.08)


def test_eight_sequences_fit_though_the_step_keeps_blocks_of_its_own() -> None:
    """InternLM 7 B at a micro-batch of eight ran: cached blocks are given back."""
    found = priced(
        **INTERNLM, recompute="full", gpus=8, zero=1, micro_batch=8, global_batch=64
    )
    assert found.fits
    assert found.peak_bytes["allocated"] < 70 * GiB


@pytest.mark.parametrize(
    ("tp", "pp", "size"), [(1, 1, 1), (1, 2, 4), (2, 1, 4), (2, 2, 8), (1, 8, 8)]
)
def test_what_ran_on_t4s_fits(tp: int, pp: int, size: int) -> None:
    """GPT-2 of 24 layers on sixteen T4s: NCCL opens few channels over PCIe."""
    found = priced(
        layers=24,
        hidden=1024,
        heads=16,
        vocab=52256,
        seq_len=1024,
        device="T4-16GB",
        gpus_per_node=4,
        intra_node_gb_per_s=16,
        inter_node_gbit_per_s=50,
        gpus=16,
        tp=tp,
        pp=pp,
        zero=0,
        micro_batch=size,
        global_batch=32,
        precision="fp16",
        recompute="none",
        attention_kernel="fused-softmax",
        framework="DeepSpeed + Megatron-LM v1.1.5 3D parallelism",
    )
    assert found.fits
