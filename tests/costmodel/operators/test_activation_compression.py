"""Compressed activations: bytes kept, and the passes over tensors that it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.layout.layout import LayerPlan, Layout
from costmodel.layout.retention import Action, Retention, Treatment, recompute
from costmodel.layout.strategy import Uniform
from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.machine.kernels import traffic_s
from costmodel.operators.activation_compression import Packer, element_bytes, packable
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.simulation.serialization import LayoutFile, file_document, parse_file
from profiles.errors import InvalidSpec
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from tests.golden.priced import job_of, layout_of
from tests.support.rows import Obtained

JOB = job_of("gpt-1.3b", 8)
WHERE = machine(cluster("dgx-a100-80gb"), load_framework("megatron-lm"))
BLOCK = JOB.graph.block("layer")


def compress(bits: int, *names: str, ratio: float = 1.0) -> Retention:
    treatment = Treatment(action=Action.COMPRESS, bits=bits, ratio=ratio)
    return Retention(tensors=dict.fromkeys(names or ("*",), treatment))


def layout_with(retention: Retention) -> Layout:
    layout = layout_of(JOB, Uniform(zero=0, micro_batch=8))
    (stage,) = layout.stages
    plans = tuple(
        replace(plan, retention=retention) if name.isdigit() else plan
        for name, plan in zip(stage.layers, stage.plans, strict=True)
    )
    return replace(layout, stages=(replace(stage, plans=plans),))


def priced(retention: Retention) -> Estimate:
    return estimate(JOB, WHERE.cluster, layout_with(retention), on=WHERE)


def activations(retention: Retention) -> float:
    return float(priced(retention).memory[0].activations)


KEPT = priced(Retention())


@pytest.mark.row(
    "G5",
    "bytes of an element in 2 bits, groups of 256",
    expected="0.266",
    evidence="computed",
)
def test_two_bits_of_fp32_are_a_fifteenth(obtained: Obtained) -> None:
    """ActNN: 2 bits, groups of 256, 4 bytes of scales: 0.266 bytes of an element."""
    obtained(f"{element_bytes(2):.3f}")
    assert element_bytes(2) == 0.25 + 4 / 256
    assert 4 / element_bytes(2) == pytest.approx(15, rel=0.01)
    assert element_bytes(16) == 2


def test_fewer_bits_keep_less_and_cost_the_same_order() -> None:
    sizes = [activations(compress(bits)) for bits in (1, 2, 4, 8, 16)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == float(KEPT.memory[0].activations)  # bf16 already has 16 bits
    assert len(set(sizes)) == len(sizes)
    assert priced(compress(2)).step_time_s > KEPT.step_time_s


def test_what_is_saved_is_the_formula() -> None:
    """One tensor of 24 layers: s·b·h elements of two bytes, to 4 bits and scales."""
    found = activations(compress(4, "attention_out"))
    elements = 24 * 2048 * 8 * 2048
    wanted = float(KEPT.memory[0].activations) - elements * (2 - element_bytes(4))
    assert found == pytest.approx(wanted, rel=1e-12)
    half = activations(compress(4, "attention_out", ratio=0.5))
    assert half == pytest.approx((found + float(KEPT.memory[0].activations)) / 2)


def test_the_time_is_two_passes_over_the_tensor() -> None:
    size = 2.0 * 2048 * 8 * 2048
    moved = size + size / 2 * element_bytes(8)
    each = float(traffic_s(moved, device=WHERE.device, rates=WHERE.rates))
    found = priced(compress(8, "attention_out")).step_time_s - KEPT.step_time_s
    assert found == pytest.approx(2 * 24 * each, rel=0.05)  # softly over the host's


def test_the_largest_tensor_is_whole_again_in_backward() -> None:
    """The MLP's input to its second product, 4·h wide."""
    before, after = (
        float(item.memory[0].transient) for item in (KEPT, priced(compress(1)))
    )
    assert after >= before
    packer = Packer.of(WHERE, precision("bf16"))
    packed = packer.packed({"one": 10.0, "two": 30.0}, compress(8))  # type: ignore[dict-item]
    assert float(packed.largest_bytes) == 30


def test_masks_and_statistics_stay_as_they_are() -> None:
    names = packable(BLOCK)
    assert "attention_out" in names
    assert not names & {"attention_residual_mask"}
    with pytest.raises(InvalidSpec, match="choose among"):
        priced(compress(8, "attention_residual_mask"))
    # Of attention that writes no softmax, what it keeps are statistics.
    assert activations(compress(8, "attention_core")) == activations(Retention())


def test_a_checkpoint_may_be_compressed() -> None:
    """The input that full recompute keeps, in 8 bits."""
    full = recompute("*")
    packed = Retention(tensors={**full.tensors, **compress(8, "layer_in").tensors})
    inputs = 24 * 2048.0 * 8 * 2048
    saved = activations(full) - activations(packed)
    assert saved == pytest.approx(inputs * (2 - element_bytes(8)), rel=1e-12)


def test_what_is_kept_in_8_bits_already_has_less_to_win() -> None:
    fp8 = precision("fp8")
    plain, te = (
        machine(cluster("dgx-h100")),
        machine(cluster("dgx-h100"), load_framework("megatron-te")),
    )
    assert te.framework.footprint.saves_quantised
    assert Packer.of(plain, fp8).whole_bytes == 2
    assert Packer.of(te, fp8).whole_bytes == 1


def test_a_file_with_compressed_layers_reads_back() -> None:
    layout = layout_with(compress(4, "attention_out", ratio=0.5))
    file = LayoutFile(
        job={"model": "gpt-1.3b", "seq_len": 2048, "global_batch": 8},
        cluster="dgx-a100-80gb",
        gpus=1,
        profiles=(),
        layout=layout,
    )
    assert parse_file(file_document(file)).layout == layout


def test_a_plan_is_hashable_and_says_that_it_compresses() -> None:
    plan = LayerPlan(retention=compress(8))
    assert hash(plan)
    assert plan.retention.compresses
    assert not recompute("*").compresses
