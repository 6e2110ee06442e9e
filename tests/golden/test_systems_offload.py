"""Offloading against ZeRO-Offload (Ren et al., ATC 2021) and Yuan et al. (ATC 2024)."""

from __future__ import annotations

import pytest

from costmodel.estimate import estimate
from costmodel.machine import machine
from costmodel.offload import Offload
from costmodel.software import software
from costmodel.uniform import Uniform, spell_out
from profiles.catalog import cluster
from profiles.job import Job
from profiles.models.catalog import model
from profiles.models.spec import DecoderSpec
from profiles.units import GiB

V100 = machine(cluster("dgx-2"), software("deepspeed"))


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


def test_thirteen_billion_parameters_on_one_v100_need_the_host() -> None:
    """13 B with ZeRO-Offload (abstract; table 2): 12.9 B fit and 15 B do not; without,
    at 16 bytes a parameter, no more than two."""
    away = Offload(optimizer=True)
    assert fits(40, 5120, away)
    assert not fits(47, 5120, away)
    assert fits(24, 2048, Offload())  # 1.3 B
    assert not fits(42, 2048, Offload())  # 2.2 B


@pytest.mark.parametrize(
    ("recompute", "least", "measured"),
    [("none", 0.3, 67.77 - 32.12), ("cheap-ops", 0.1, 57.86 - 30.23)],
)
def test_memory_of_llama_65b_falls_with_the_ratio(
    recompute: str, least: float, measured: float
) -> None:
    """Yuan et al. (ATC 2024), s = 8192 on 256 H800, t2 c2 p8, two layers a virtual
    stage: how far `max_memory_allocated` falls to that of ratio 1, GiB; 12 %."""
    spec = model("llama-65b").spec
    job = Job(model="llama-65b", spec=spec, seq_len=8192, global_batch=256)
    where = machine(cluster("h800-80gb"), software("megatron-core"))
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
    assert peaks[0] - peaks[1] == pytest.approx(measured, rel=0.12)
