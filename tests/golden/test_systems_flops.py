"""MFU and HFU that papers print, from their step times and our FLOPs."""

from __future__ import annotations

import pytest

from costmodel.layout.strategy import Uniform
from costmodel.simulation.flops import block_flops, model_flops
from costmodel.simulation.result import recomputed_flops
from profiles.units import TFLOPS
from tests.golden.priced import job_of, layout_of

A100_FLOPS = 312 * TFLOPS  # dense bf16 and fp16, datasheet


def executed_flops(
    name: str, global_batch: int, choice: Uniform
) -> tuple[float, float]:
    """(the model's FLOPs of a step, those with what is recomputed)."""
    job = job_of(name, global_batch)
    again = recomputed_flops(job, layout_of(job, choice))
    return model_flops(job), model_flops(job) + again


# Narayanan et al. (SC 2021), Table 1: model, GPUs, batch, TFLOP/s per GPU (full
# recompute, so hardware FLOPs), and the step seconds that follow from both.
TABLE_1 = [
    ("gpt-1.7b", 32, 512, 137, 3.53),
    ("gpt-3.6b", 64, 512, 138, 3.70),
    ("gpt-7.5b", 128, 512, 142, 3.70),
    ("gpt-18.4b", 256, 1024, 135, 9.40),
    ("gpt-39.1b", 512, 1536, 138, 14.45),
    ("gpt-76.1b", 1024, 1792, 140, 16.06),
    ("gpt-145.6b", 1536, 2304, 148, 24.82),
    ("gpt-310.1b", 1920, 2160, 155, 37.61),
    ("gpt-529.6b", 2520, 2520, 163, 54.08),
    ("gpt-1t", 3072, 3072, 163, 102.6),
]


@pytest.mark.parametrize(("name", "gpus", "batch", "tflops", "step_s"), TABLE_1)
def test_step_times_of_megatron_table_1(
    name: str, gpus: int, batch: int, tflops: float, step_s: float
) -> None:
    _, hardware = executed_flops(name, batch, Uniform(recompute="full", zero=0))
    assert hardware / (gpus * tflops * TFLOPS) == pytest.approx(step_s, rel=0.002)


@pytest.mark.row("J3", "TFLOP/s a GPU of its measured steps", expected="126; 121; 113")
@pytest.mark.parametrize(
    ("gpus", "step_s", "hardware_tflops", "mfu"),
    [
        (2240, 60.1, 125.7, 0.302),
        (2800, 50.2, 120.4, 0.290),
        (3360, 44.4, 113.5, 0.273),
    ],
)
def test_mt_nlg_is_quoted_in_hardware_flops(
    gpus: int, step_s: float, hardware_tflops: float, mfu: float
) -> None:
    """Smith et al. (2022), section 2.4: 126, 121 and 113 TFLOP/s per GPU."""
    model_, hardware = executed_flops(
        "mt-nlg-530b", 1920, Uniform(recompute="full", zero=0)
    )
    per_gpu = gpus * step_s
    assert hardware / per_gpu / TFLOPS == pytest.approx(hardware_tflops, abs=0.05)
    assert model_ / per_gpu / A100_FLOPS == pytest.approx(mfu, abs=0.0005)


# Korthikanti et al. (MLSys 2023), Table 5: GPUs, batch, step seconds and MFU with
# sequence parallelism and selective recompute.
TABLE_5 = [
    ("gpt-22b", 8, 4, 1.10, 0.417),
    ("gpt-175b", 64, 64, 13.75, 0.514),
    ("gpt-529.6b", 280, 280, 37.83, 0.560),
    ("gpt-1t", 512, 512, 71.49, 0.563),
]


@pytest.mark.parametrize(("name", "gpus", "batch", "step_s", "mfu"), TABLE_5)
def test_mfu_of_korthikanti_table_5(
    name: str, gpus: int, batch: int, step_s: float, mfu: float
) -> None:
    found = model_flops(job_of(name, batch)) / (gpus * step_s * A100_FLOPS)
    assert found == pytest.approx(mfu, abs=0.001)


def test_hfu_counts_the_attention_core_once_more() -> None:
    """The paper's appendix writes s/3h where one more forward is 2s/9h: 52.8 % of the
    175B model instead of 51.9 % (MFU 51.4 %). Ours is the exact count."""
    _, hardware = executed_flops("gpt-175b", 64, Uniform(recompute="selective", zero=0))
    assert hardware / (64 * 13.75 * A100_FLOPS) == pytest.approx(0.519, abs=0.001)


@pytest.mark.parametrize(
    ("name", "share"), [("gpt-175b", 0.027), ("gpt-529.6b", 0.016)]
)
def test_selective_recompute_repeats_little(name: str, share: float) -> None:
    """Korthikanti et al., section 5: s/(6h + s) of a layer's forward."""
    job = job_of(name, 8)
    layers = next(count for block, count in job.graph.blocks if block.name == "layer")
    forward = layers * block_flops(job.graph.block("layer"), job)
    layout = layout_of(job, Uniform(recompute="selective", zero=0))
    assert recomputed_flops(job, layout) / forward == pytest.approx(share, abs=0.0005)


def test_full_recompute_adds_a_third() -> None:
    """Chen et al. (2016): one more forward, 4/3 of the FLOPs, but for the head."""
    model_, hardware = executed_flops("gpt-175b", 64, Uniform(recompute="full", zero=0))
    assert hardware / model_ == pytest.approx(4 / 3, rel=0.005)
    assert hardware / model_ < 4 / 3
