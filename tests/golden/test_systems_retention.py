"""What is kept for backward: segments of layers (Chen et al., 2016)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.estimate import estimate
from costmodel.uniform import Uniform
from profiles.job import Job
from profiles.models.catalog import model
from profiles.models.spec import DecoderSpec
from tests.golden.priced import job_of, layout_of, machine_of, priced

ALONE = {"sequence_parallel": False, "flash_attention": True}


def thousand_layers() -> Job:
    """A chain of 1000 equal layers: GPT-125m's, whose ends are little beside them."""
    spec = model("gpt-125m").spec
    assert isinstance(spec, DecoderSpec)
    spec = replace(spec, layers=1000, dropout=0.0)
    return Job(model="thousand", spec=spec, seq_len=2048, global_batch=8)


def test_a_thousand_layers_keep_two_square_roots_of_units() -> None:
    """Row H1: 2√1000 = 63 units of one layer's input or tensors where all would be
    1000; here a unit at work is what a layer saves, a unit kept is its input."""
    job, where = thousand_layers(), machine_of()
    kept, one, roots = (
        priced(job, where, recompute=name, **ALONE) for name in ("none", "full", "sqrt")
    )
    everything, inputs, few = (
        float(item.memory[0].activations) for item in (kept, one, roots)
    )
    unit = 2.0 * 2048 * 768  # a layer's input; what the ends keep cancels
    units = 1000 - (inputs - few) / unit
    layer = unit + (everything - inputs) / 1000
    at_work = float(roots.memory[0].transient) / layer  # and an operator's own tensors
    assert units == pytest.approx(32, rel=1e-9)
    assert at_work == pytest.approx(32, rel=0.02)
    assert units + at_work == pytest.approx(2 * 1000**0.5, rel=0.02)


def test_segments_take_one_more_forward() -> None:
    """Time factor 4/3 where backward takes two forwards, as for `full`."""
    job, where = thousand_layers(), machine_of()
    kept, one, roots = (
        priced(job, where, recompute=name, **ALONE) for name in ("none", "full", "sqrt")
    )
    assert roots.hardware_flops / roots.model_flops == pytest.approx(4 / 3, rel=0.02)
    assert roots.step_time_s == pytest.approx(one.step_time_s, rel=1e-9)
    ratio = roots.step_time_s / kept.step_time_s
    assert 1.25 < ratio < 1.4


@pytest.mark.parametrize("pp", [1, 4])
def test_segments_save_where_layers_are_many(pp: int) -> None:
    """Fewer bytes than one segment a layer, where a micro-batch is large enough."""
    job = job_of("gpt-175b", 8 * pp)
    sizes = {"tp": 8, "pp": pp, "sequence_parallel": True, "micro_batch": 4}
    one, roots = (
        priced(job, machine_of("megatron-core"), recompute=name, **sizes)
        for name in ("full", "sqrt")
    )
    assert float(roots.memory[0].activations) < float(one.memory[0].activations) / 3
    working = [float(item.memory[0].transient) for item in (roots, one)]
    assert working[0] > working[1]


def test_a_layout_says_which_layers_keep_their_input() -> None:
    job = job_of("gpt-13b", 8)
    layout = layout_of(job, Uniform(recompute="sqrt", pp=4))
    plans = layout.stages[1].plans
    kept = ["layer_in" not in plan.retention.tensors for plan in plans]
    assert kept == [True, *[False] * 3, True, *[False] * 2, True, *[False] * 2]
    assert all("*" in plan.retention.tensors for plan in plans)
    where = machine_of()
    assert estimate(job, where.cluster, layout, on=where).fits in (True, False)
