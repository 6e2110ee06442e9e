"""Narrow floats train like fp32 as far as they reach; an overflow leaves a step out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runtime.loss_scale import FIRST, INTERVAL, LossScale, loss_scale
from tests.apart import apart
from tests.runtime.ranks import on_ranks
from tests.small_layouts import FP32, ZERO1
from tests.training import trained, whole
from tests.training_cases import job

NARROW = ("bf16", "amp-bf16", "fp16", "amp-fp16")
# Of the first gradient, in relative L2: half the last bit of each, carried through.
NEAR = {"bf16": 3e-2, "amp-bf16": 3e-2, "fp16": 4e-3, "amp-fp16": 4e-3}
TP2 = replace(FP32, tp=2)
CASES = [(precision, choice) for choice in (TP2, ZERO1) for precision in NARROW]


def seen(rank: int) -> dict[str, Any]:
    runs = [
        trained("gpt", replace(choice, precision=precision))
        for precision, choice in CASES
    ]
    plain = trained("gpt", TP2)
    return {"plain": plain, "runs": runs, "overflow": _overflow()}


def _overflow() -> dict[str, Any]:
    """A step whose scale is too large for fp16, and the one after it."""
    import torch

    from costmodel.uniform import spell_out
    from runtime.data.source import source
    from runtime.optimizer import Settings
    from runtime.trainer import Trainer

    asked = job("gpt")
    layout = spell_out(replace(TP2, precision="fp16"), asked.graph, 8)
    data = source("synthetic", vocab=512, seq_len=asked.seq_len, seed=0)
    trainer = Trainer(
        asked, layout, data, settings=Settings(), seed=0, device=torch.device("cpu")
    )
    trainer.scale.value = 2.0**40
    before = [leaf.value.clone() for leaf in trainer.optimizer.leaves]
    first = trainer.step(0)
    same = all(
        torch.equal(one, leaf.value)
        for one, leaf in zip(before, trainer.optimizer.leaves, strict=True)
    )
    halved = trainer.scale.value
    trainer.scale.value = 2.0**8
    second = trainer.step(1)
    assert whole(trainer, trainer.gradients())
    return {
        "norms": [first.gradient_norm, second.gradient_norm],
        "same": same,
        "halved": halved,
    }


@pytest.mark.slow
def test_narrow_floats_are_near() -> None:
    for rank in on_ranks(2, seen):
        wanted = rank["plain"]
        for (precision, choice), run in zip(CASES, rank["runs"], strict=True):
            near, where = NEAR[precision], (precision, choice)
            assert run["losses"] == pytest.approx(wanted["losses"], rel=near), where
            assert apart(run["gradients"], wanted["gradients"]) < near, where
        overflow = rank["overflow"]
        assert overflow["same"]
        assert overflow["halved"] == 2.0**39
        assert (
            overflow["norms"][0] == float("inf")
            or overflow["norms"][0] != (overflow["norms"][0])
        )
        assert 0 < overflow["norms"][1] < 100


def test_a_scale_grows_after_good_steps_and_halves_after_a_bad_one() -> None:
    scale = loss_scale(dynamic=True)
    for _ in range(INTERVAL):
        assert scale.judge(finite=True)
    assert (scale.value, scale.good_steps) == (2 * FIRST, 0)
    assert not scale.judge(finite=False)
    assert scale.value == FIRST
    assert LossScale(dynamic=True, value=1.0).judge(finite=False) is False


def test_without_a_scale_every_step_counts() -> None:
    scale = loss_scale(dynamic=False)
    assert scale.judge(finite=False)
    assert scale.value == 1.0
