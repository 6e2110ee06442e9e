"""DeepSeek-V3's published layout fits in the memory that it ran in.

2,048 H800, 16 stages, experts over 64 ranks, ZeRO-1, DualPipe, fp8, the outputs of
norms and of MLA's up-projections made again, moments in bf16 (arXiv 2412.19437,
sections 3.2 and 3.3; batch and sequence of section 4.2).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.machine.assembly import Machine
from costmodel.simulation.estimator import Estimate
from profiles.units import GiB
from tests.golden.priced import job_of, machine_of, priced

AGAIN = (
    "input_norm,mlp_norm,q_norm,kv_norm,q_up,kv_up,rotary,activation,shared_activation"
)
HAI_LLM = machine_of("hai-llm", on="h800-80gb")


def as_published(
    where: Machine = HAI_LLM,
    optimizer: str = "adamw-bf16-moments",
    recompute: str = AGAIN,
) -> Estimate:
    """One copy of the model in a V: the report's two have 9 GiB a rank more."""
    job = replace(job_of("deepseek-v3", 15360, 4096), optimizer=optimizer)
    shape = {"pp": 16, "dp": 128, "ep": 64, "zero": 1, "zero_group": 128}
    pipeline = {"schedule": "dualpipe-v", "virtual_stages": 2}
    kept = {"recompute": recompute, "precision": "fp8"}
    return priced(job, where, **shape, **pipeline, **kept)


def test_it_fits_with_both_copies_of_the_model() -> None:
    found = as_published()
    assert found.fits
    assert found.interval["probability_fits"] > 0.95
    for rank in found.memory:
        twice = float(rank.needed + rank.parameters + rank.gradients)
        assert twice < HAI_LLM.device.capacity_bytes


@pytest.mark.parametrize("recompute", ["full", AGAIN])
def test_eight_bit_operands_are_half_of_what_waits(recompute: str) -> None:
    """In 16 bits it would not fit: at the end of the pipeline a rank holds the operands
    of the weights' gradients of 16 micro-batches, 2 GiB a layer."""
    framework = HAI_LLM.framework
    wide = replace(framework.footprint, saves_quantised=False)
    in_sixteen = replace(HAI_LLM, framework=replace(framework, footprint=wide))
    more, less = (
        as_published(where, recompute=recompute).memory[-1]
        for where in (in_sixteen, HAI_LLM)
    )
    assert float(less.activations) < 0.8 * float(more.activations)
    assert float(more.needed) > 79 * GiB
    if recompute == "full":  # what waits is all that is left at the end
        assert float(less.activations) == pytest.approx(
            0.5 * more.activations, rel=0.01
        )


def test_moments_in_bf16_take_half_of_those_in_fp32() -> None:
    """Experts shard over two ranks: 12 bytes a parameter over them, or 8."""
    wide, narrow = (
        as_published(optimizer=name).memory[8].optimizer
        for name in ("adamw", "adamw-bf16-moments")
    )
    assert float(narrow / wide) == pytest.approx(8 / 12)
