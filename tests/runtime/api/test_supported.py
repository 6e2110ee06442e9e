"""Layouts that a module of the user's own is not trained by, and what is near."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.layout.layout import Layout
from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform, spell_out
from profiles.errors import Unsupported
from runtime.api.supported import require_executable
from tests.support.small_layouts import FP32, STATES
from tests.support.training_cases import BATCH, job

PP2 = replace(FP32, pp=2, micro_batch=2)


def layout(choice: Uniform) -> Layout:
    return spell_out(choice, job("gpt").graph, BATCH)


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (replace(FP32, cp=2), "cp 2 changes what a module computes"),
        (replace(FP32, tp=2, sequence_parallel=True), "--no-sequence-parallel"),
        (replace(FP32, precision="fp8"), "plan with --precision bf16"),
        (replace(PP2, precision="amp-fp16"), "scales the loss.*plan with a bf16"),
        (replace(PP2, schedule="zb-h1"), "choose gpipe, 1f1b, interleaved"),
        (replace(FP32, recompute="selective"), r"inside a layer \(selective\)"),
        (replace(FP32, recompute="cheap-ops"), r"inside a layer \(by name\)"),
        (replace(FP32, recompute="sqrt"), "choose recompute none or full"),
        (
            replace(FP32, offload=Offload(activations=0.5)),
            r"inside a layer \(offloaded\).*without --offload activations",
        ),
        (replace(FP32, zero=3, offload=Offload(parameters=True)), "add optimizer to"),
        (replace(FP32, dp=2, zero=0, offload=STATES), "choose --zero 3"),
        (
            replace(FP32, precision="bf16", gradient_format="bf16"),
            "gradients in bf16: .* leave --grad-dtype out",
        ),
    ],
)
def test_what_needs_execute_is_refused(choice: Uniform, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason) as raised:
        require_executable(layout(choice))
    assert raised.value.exit_code == 2


def test_every_reason_is_said_at_once() -> None:
    asked = replace(FP32, cp=2, recompute="selective")
    with pytest.raises(Unsupported, match=r"cp 2 .*; recompute or offload inside"):
        require_executable(layout(asked))
