"""Narrow floats train like fp32 as far as they reach; an overflow leaves a step out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from costmodel.layout.strategy import spell_out
from costmodel.simulation.layout_files import write_layout
from profiles.errors import Unsupported
from runtime.launch import run
from runtime.models.precision import require_multiplied
from runtime.optim.optimizer import FIRST, INTERVAL, LossScale, loss_scale
from tests.runtime.ranks import on_ranks
from tests.runtime.run_options import run_options
from tests.support.apart import apart
from tests.support.small_layouts import FP32, ZERO1
from tests.support.training import trained, whole
from tests.support.training_cases import BATCH, job

NARROW = ("bf16", "amp-bf16", "fp16", "amp-fp16")
# Of the first gradient, in relative L2: half the last bit of each, carried through.
NEAR = {"bf16": 3e-2, "amp-bf16": 3e-2, "fp16": 4e-3, "amp-fp16": 4e-3}
TP2 = replace(FP32, tp=2)
STEPS = 2  # the second one's loss is of parameters that the first has changed
CASES = [(precision, choice) for choice in (TP2, ZERO1) for precision in NARROW]


def seen(rank: int) -> dict[str, Any]:
    runs = [
        trained("gpt", replace(choice, precision=precision), steps=STEPS)
        for precision, choice in CASES
    ]
    plain = trained("gpt", TP2, steps=STEPS)
    return {"plain": plain, "runs": runs, "overflow": _overflow()}


def _overflow() -> dict[str, Any]:
    """A step whose scale is too large for fp16, and the one after it."""
    from runtime.data.sources import source
    from runtime.optim.optimizer import Settings
    from runtime.train.build import Setup
    from runtime.train.trainer import Trainer

    asked = job("gpt")
    layout = spell_out(replace(TP2, precision="fp16"), asked.graph, 8)
    data = source("synthetic", vocab=512, seq_len=asked.seq_len, seed=0)
    setup = Setup(seed=0, device=torch.device("cpu"))
    trainer = Trainer(asked, layout, data, settings=Settings(), setup=setup)
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
        for (precision, choice), one in zip(CASES, rank["runs"], strict=True):
            near, where = NEAR[precision], (precision, choice)
            assert one["losses"] == pytest.approx(wanted["losses"], rel=near), where
            assert apart(one["gradients"], wanted["gradients"]) < near, where
        overflow = rank["overflow"]
        assert overflow["same"]
        assert overflow["halved"] == 2.0**39
        assert (
            overflow["norms"][0] == float("inf")
            or overflow["norms"][0] != (overflow["norms"][0])
        )
        assert 0 < overflow["norms"][1] < 100


@pytest.mark.parametrize(
    ("name", "capability", "said"),
    [
        ("tf32", None, "a CPU does not multiply in tf32; plan with --precision fp32"),
        ("tf32", (7, 5), "in tf32; plan with --precision fp32"),
        ("bf16", (7, 5), "in bf16; plan with --precision fp32"),
        ("amp-bf16", (7, 0), "in bf16; plan with --precision fp32"),
        ("fp8", (8, 6), "in fp8; plan with --precision bf16"),
        ("mxfp8", None, "mxfp8 is not supported"),
        ("fp8", None, None),
        ("fp8", (8, 9), None),
        ("tf32", (8, 0), None),
        ("fp16", (7, 0), None),
    ],
)
def test_what_a_device_does_not_multiply_in_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    capability: tuple[int, int] | None,
    said: str | None,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    device = "cpu" if capability is None else "cuda"
    if said is None:
        require_multiplied(name, device)
        return
    with pytest.raises(Unsupported, match=re.escape(said)):
        require_multiplied(name, device)


def test_a_layout_in_tf32_starts_nothing_on_a_cpu(tmp_path: Path) -> None:
    asked, file = job("gpt"), tmp_path / "layout.json"
    layout = spell_out(replace(FP32, precision="tf32"), asked.graph, BATCH)
    write_layout(file, asked, "local", layout)
    with pytest.raises(Unsupported, match="a CPU does not multiply in tf32"):
        run.prepare(run_options(file))


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
