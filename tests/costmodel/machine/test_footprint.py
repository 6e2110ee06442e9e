"""What frameworks keep: gradients, logits, gates and buffers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.layout.retention import preset
from costmodel.machine.assembly import machine
from costmodel.machine.framework import (
    GRADIENTS,
    Footprint,
    footprints,
    frameworks,
    load_framework,
)
from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import entry_bytes
from costmodel.stages.block_cost import Atom, atom, block_prices
from profiles.errors import InvalidSpec
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.catalog import model
from profiles.models.decoder import decoder_graph
from profiles.models.spec import DecoderSpec

POLICY = precision("bf16")


def llama() -> DecoderSpec:
    spec = model("llama3-8b").spec
    assert isinstance(spec, DecoderSpec)
    return spec


SPEC = llama()
TOKENS = 2 * 8192


def priced(
    block: str, habits: Footprint, *, tp: int = 1, recompute: str = "none"
) -> Atom:
    """A block of Llama 3 8B, two sequences of 8,192 tokens, sequence parallel."""
    found = decoder_graph(SPEC).block(block)
    used = replace(load_framework("meshwright"), footprint=habits)
    degrees = Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(1),
        micro_batch=np.asarray(2),
        seq_len=8192,
        sequence_parallel=tp > 1,
    )
    prices = block_prices(found, degrees, POLICY, machine(cluster("dgx-h100"), used))
    entry = entry_bytes(found, degrees, POLICY)
    return atom(found, prices, preset(recompute, found), entry)


def test_every_footprint_is_of_a_framework_and_has_a_source() -> None:
    for name, habits in footprints().items():
        assert frameworks()[name].footprint is habits
        assert len(habits.source) > 20
        for held in (habits.fp16_gradients, habits.bf16_gradients):
            assert held in (*GRADIENTS, "policy")


@pytest.mark.parametrize(
    ("framework", "name", "expected"),
    [
        ("megatron-deepspeed", "fp16", (2, 4)),
        ("megatron-deepspeed", "bf16", (6, 0)),
        ("megatron-core", "bf16", (4, 0)),
        ("aa-scaling", "bf16", (2, 4)),
        ("oneflow", "fp16", (2, 0)),
        ("megatron-deepspeed", "fp32", (4, 0)),
    ],
)
def test_gradients(framework: str, name: str, expected: tuple[float, float]) -> None:
    habits = footprints()[framework]
    assert habits.gradient_bytes(precision(name)) == expected


def test_a_gradient_format_that_was_asked_for_is_kept() -> None:
    habits = footprints()["megatron-deepspeed"]
    asked = precision("bf16", gradient="bf16")
    assert habits.gradient_bytes(asked) == (2, 0)


def test_logits_are_alive_beside_the_softmax() -> None:
    vocab, plain = SPEC.vocab, Footprint()
    few = priced("head", replace(plain, fp32_logits=2))
    assert float(few.forward_working_bytes) >= TOKENS * vocab * 8
    half = priced("head", replace(plain, half_softmax=True))
    whole = priced("head", plain)
    saved = float(whole.saved_bytes - half.saved_bytes)
    assert saved == pytest.approx(TOKENS * vocab * 2)


@pytest.mark.parametrize(
    ("framework", "name", "expected"),
    [
        ("megatron-deepspeed", "fp16", 2 + 4),  # 16-bit logits, what the clone is of
        ("sailor", "fp32", 4 + 4),  # logits, and those less their maximum
        ("megatron-core", "bf16", 2),  # 16-bit logits, or their gradient
    ],
)
def test_bytes_of_a_logit_beside_the_softmax(
    framework: str, name: str, expected: float
) -> None:
    """As each loss's source has it: in place on a clone, out of place, in place."""
    found = footprints()[framework].logits_bytes(precision(name), np.asarray(8))
    assert float(found) == expected


def test_whole_logits_are_not_split_over_tp() -> None:
    habits = Footprint(fp32_logits=2)
    split = priced("head", habits, tp=4)
    whole = priced("head", replace(habits, whole_logits=True), tp=4)
    ratio = float(whole.forward_working_bytes / split.forward_working_bytes)
    assert ratio == pytest.approx(4, rel=0.01)


def test_loss_parallelism_holds_one_more_copy_of_split_logits() -> None:
    """torch's loss parallelism: softmax, gradient, its sum with exp, exp; 4 bytes."""
    habits = footprints()["fsdp2"]
    plain = replace(habits, split_logits=0)
    for tp, more in ((1, 0), (4, TOKENS * SPEC.vocab * 4 / 4)):
        with_it, without = (
            float(priced("head", one, tp=tp).forward_working_bytes)
            for one in (habits, plain)
        )
        assert with_it - without == pytest.approx(more)


def test_a_kept_gate_and_gathered_inputs() -> None:
    plain = float(priced("layer", Footprint(), tp=4).saved_bytes)
    gate = float(priced("layer", Footprint(keeps_gate=True), tp=4).saved_bytes)
    assert gate - plain == pytest.approx(TOKENS * SPEC.ffn_hidden * 2 / 4)
    gathered = float(priced("layer", Footprint(keeps_gathered=True), tp=4).saved_bytes)
    assert gathered - plain == pytest.approx(2 * TOKENS * SPEC.hidden * 2 * 3 / 4)


def test_half_of_an_operator_can_be_recomputed() -> None:
    kept, half, whole = (
        priced("layer", Footprint(), recompute=how)
        for how in ("none", "mlp_up=0.5", "mlp_up")
    )
    up = TOKENS * 2 * SPEC.ffn_hidden * 2
    assert float(kept.saved_bytes - half.saved_bytes) == pytest.approx(up / 2)
    assert float(kept.saved_bytes - whole.saved_bytes) == pytest.approx(up)
    assert float(half.recompute_flops) == pytest.approx(
        float(whole.recompute_flops) / 2
    )


@pytest.mark.parametrize("share", ["0", "1.5", "half"])
def test_a_share_is_above_0_up_to_1(share: str) -> None:
    with pytest.raises(InvalidSpec, match="share"):
        preset(f"mlp_up={share}", decoder_graph(SPEC).block("layer"))


HELD = {"fp32": 4, "bf16": 2, "fp16": 2, "bf16+fp32": 6}


@pytest.mark.parametrize("number", ["bf16", "fp16", "fp8", "amp-bf16"])
@pytest.mark.parametrize("name", frameworks())
def test_what_is_printed_of_gradients_is_what_memory_counts(
    name: str, number: str
) -> None:
    """Of DeepSpeed's ZeRO `grad-dtype fp32` was printed, and 2 bytes counted."""
    framework = load_framework(name)
    policy = precision(number, gradient=framework.gradients.format)
    counted, _ = framework.footprint.gradient_bytes(policy)
    assert HELD[framework.gradient_formats(number)] == counted


def test_deepspeed_holds_16_bit_gradients_and_says_so() -> None:
    """Beside its 16-bit weights: 4 bytes, as in DeepSpeed's estimator (2P + 2P + …);
    its bf16 optimizer, of Megatron-DeepSpeed, holds both."""
    assert load_framework("deepspeed").gradient_formats("bf16") == "bf16"
    assert load_framework("deepspeed").gradient_formats("fp16") == "fp16"
    assert load_framework("megatron-deepspeed").gradient_formats("bf16") == "bf16+fp32"
    assert load_framework("megatron-core").gradient_formats("bf16") == "fp32"
