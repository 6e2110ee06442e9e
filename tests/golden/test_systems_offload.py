"""Offloading against ZeRO-Offload (Ren et al., ATC 2021) and Yuan et al. (ATC 2024)."""

from __future__ import annotations

from itertools import count
from statistics import fmean
from typing import Any

import pytest

from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.options.pins import Pins
from costmodel.simulation.estimator import Estimate, estimate
from planner.api import plan
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job
from profiles.models.param_count import parameters
from profiles.models.spec import DecoderSpec
from profiles.units import GiB
from tests.golden.priced import job_of, priced
from tests.support.rows import Obtained

V100 = machine(cluster("dgx-2"), load_framework("deepspeed"))


def gpt(layers: int, hidden: int) -> DecoderSpec:
    return DecoderSpec(
        layers=layers,
        hidden=hidden,
        heads=hidden // 128,
        kv_heads=hidden // 128,
        head_dim=128,
        ffn_hidden=4 * hidden,
        vocab=50_304,
        max_positions=1024,
    )


def fits(layers: int, hidden: int, offload: Offload) -> bool:
    """On one V100 of 32 GB, full recompute, one sequence at a time."""
    job = Job(model="gpt", spec=gpt(layers, hidden), seq_len=1024, global_batch=1)
    choice = Uniform(
        zero=2,
        recompute="full",
        precision="fp16",
        gradient_format="fp16",
        flash_attention=False,
        offload=offload,
    )
    layout = spell_out(choice, job.graph, job.global_batch)
    return estimate(job, V100.cluster, layout, on=V100).fits


def largest(hidden: int, offload: Offload) -> float:
    """Billion parameters of the most layers that fit."""
    layers = next(one for one in count(20) if not fits(one, hidden, offload)) - 1
    return parameters(gpt(layers, hidden)).total / 1e9


@pytest.mark.row(
    "H7",
    "billion parameters on one V100 of 32 GB with the host; without",
    expected="13 (1); 1.4 (0.2)",
    misses="one sequence at a time, every layer recomputed; theirs is not said",
)
def test_thirteen_billion_parameters_on_one_v100_need_the_host(
    obtained: Obtained,
) -> None:
    """13 B with ZeRO-Offload (abstract; table 2): 12.9 B fit and 15 B do not; without,
    at 16 bytes a parameter, no more than two."""
    away = Offload(optimizer=True)
    most = (largest(5120, away), largest(2048, Offload()))
    obtained("; ".join(f"{billions:.1f}" for billions in most))
    assert fits(40, 5120, away)
    assert not fits(47, 5120, away)
    assert fits(24, 2048, Offload())  # 1.3 B
    assert not fits(42, 2048, Offload())  # 2.2 B


@pytest.mark.row(
    "H4",
    "GiB that memory falls by as the ratio grows to 1",
    expected="35.65; 27.63 (12 %)",
)
@pytest.mark.parametrize(
    ("recompute", "least", "measured"),
    [("none", 0.3, 67.77 - 32.12), ("cheap-ops", 0.1, 57.86 - 30.23)],
)
def test_memory_of_llama_65b_falls_with_the_ratio(
    recompute: str, least: float, measured: float, obtained: Obtained
) -> None:
    """Yuan et al. (ATC 2024), s = 8192 on 256 H800, t2 c2 p8, two layers a virtual
    stage: how far `max_memory_allocated` falls to that of ratio 1, GiB; 12 %."""
    spec = model("llama-65b").spec
    job = Job(model="llama-65b", spec=spec, seq_len=8192, global_batch=256)
    where = machine(cluster("h800-80gb"), load_framework("megatron-core"))
    peaks = []
    for ratio in (least, 1.0):
        choice = Uniform(
            tp=2,
            pp=8,
            dp=8,
            cp=2,
            virtual_stages=5,
            schedule="interleaved",
            zero_group=8,
            sequence_parallel=True,
            recompute=recompute,
            offload=Offload(activations=ratio),
        )
        layout = spell_out(choice, job.graph, job.global_batch)
        found = estimate(job, where.cluster, layout, on=where)
        peaks.append(found.peak_allocated_bytes / GiB)
        assert found.breakdown_s["offload"] < 0.1 * found.step_time_s  # mostly hidden
    obtained(f"{peaks[0] - peaks[-1]:.1f}")
    assert peaks[0] - peaks[1] == pytest.approx(measured, rel=0.12)


# Yuan et al. (ATC 2024), figure 9, Llama-65B, s = 4096, the best layout of theirs that
# was measured: GPUs, batch, tp, pp, virtual stages; whether norms and activations are
# made again, the share that is offloaded, seconds of a step (artifact's README).
FIGURE_9 = [
    (256, 256, 2, 8, 5, False, 0.355, 4.481),
    (240, 240, 2, 10, 4, False, 0.302, 4.480),
    (200, 250, 4, 5, 4, False, 0, 5.695),
    (192, 240, 4, 8, 5, False, 0, 5.452),
    (160, 240, 2, 10, 4, False, 0.331, 6.183),
    (128, 256, 2, 8, 5, True, 0, 7.922),
    (120, 240, 2, 5, 8, True, 0.383, 8.092),
    (112, 252, 4, 4, 5, False, 0, 10.421),
    (96, 240, 2, 8, 5, True, 0.035, 10.160),
    (80, 240, 2, 10, 4, True, 0, 11.248),
    (64, 256, 2, 8, 5, True, 0.162, 14.587),
    (56, 252, 2, 4, 10, True, 0.945, 19.767),
    (48, 264, 2, 8, 5, True, 0.29, 21.151),
    (40, 260, 2, 5, 8, True, 0.815, 23.295),
    (32, 272, 2, 8, 5, True, 0.544, 30.324),
]
H800 = machine(cluster("h800-80gb-8x100g"), load_framework("megatron-te"))


def figure_9(row: tuple[Any, ...]) -> Estimate:
    gpus, batch, tp, pp, virtual, cheap, share, _ = row
    return priced(
        job_of("llama-65b", batch, 4096),
        H800,
        tp=tp,
        pp=pp,
        dp=gpus // (tp * pp),
        virtual_stages=virtual,
        schedule="interleaved",
        zero=1,
        zero_group=gpus // (tp * pp),
        sequence_parallel=True,
        recompute="cheap-ops" if cheap else "none",
        offload=Offload(activations=share),
    )


@pytest.mark.row("H11", "steps of Figure 9 within", expected="8 %")
@pytest.mark.parametrize("row", FIGURE_9, ids=lambda row: f"{row[0]} GPUs")
def test_steps_of_figure_9_fit_and_take_as_long(
    row: tuple[Any, ...], obtained: Obtained
) -> None:
    """Those that offload count in no fit of ours."""
    found = figure_9(row)
    assert found.fits
    obtained(f"{found.step_time_s / row[-1] - 1:+.1%}")
    assert found.step_time_s == pytest.approx(row[-1], rel=0.08)


@pytest.mark.xfail(reason="3.1 % off in the mean for 3: docs/accuracy.md")
def test_steps_of_figure_9_on_average() -> None:
    errors = [abs(figure_9(row).step_time_s / row[-1] - 1) for row in FIGURE_9]
    assert fmean(errors) <= 0.03


@pytest.mark.row(
    "H11", "our plan over theirs, by our estimates, 32 GPUs", expected="at most 1.05"
)
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(FIGURE_9[2], marks=pytest.mark.matrix, id="200"),
        pytest.param(FIGURE_9[-1], id="32"),
    ],
)
def test_a_plan_is_no_slower_than_theirs(row: tuple[Any, ...]) -> None:
    """Row H11: within 5 % of the listed plan, by our own estimates; of a sequence on
    one rank, as all of theirs."""
    gpus, batch, *_ = row
    found = plan(
        job_of("llama-65b", batch, 4096),
        H800.cluster,
        gpus=gpus,
        on=H800,
        pins=Pins(offload="auto", cp=1),
        runners_up=0,
    )
    assert found.best is not None
    assert found.best.estimate.step_time_s <= 1.05 * figure_9(row).step_time_s
