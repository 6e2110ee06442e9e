"""`runtime.checkpoint.checkpoint`: exact, in every layout and from one to another."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from runtime.checkpoint.checkpoint import load, save
from runtime.optim.optimizer import Optimizer, Settings
from tests.runtime import checkpoint_cases as cases
from tests.runtime.checkpoint_cases import (
    META,
    Part,
    built,
    close,
    restored,
    same,
    stored,
)
from tests.runtime.ranks import on_ranks


def test_one_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    ((before, after),) = [cases.saved_by(0, tmp_path, "plain", {})]
    part = restored(tmp_path, built("plain", seed=9))
    assert same(part.whole(), before)
    part.step(2)
    assert same(part.whole(), after)
    assert not same(before, after)


@pytest.mark.slow
def test_every_layout_reads_what_every_other_wrote(tmp_path: Path) -> None:
    options: dict[str, bool] = {}
    before, after = cases.saved_by(0, tmp_path, "plain", options)
    everyone = on_ranks(2, cases.handed_on, tmp_path, options)
    assert [name.split()[1] for name in everyone[0]][:5] == list(cases.LAYOUTS)
    for layout in everyone[0]:
        read = {**everyone[0][layout][0], **everyone[1][layout][0]}
        made = {**everyone[0][layout][1], **everyone[1][layout][1]}
        assert same(read, before), layout
        assert close(made, after), layout
    last = restored(tmp_path, built("plain", seed=4, **options))
    assert same(last.whole(), before)


def test_every_layout_goes_on_bit_for_bit(tmp_path: Path) -> None:
    for seen in on_ranks(2, cases.resumed_exactly, tmp_path, {"tied": True}):
        assert list(seen) == list(cases.LAYOUTS)
        for layout, (whole, resumed) in seen.items():
            assert same(whole, resumed), layout


def test_a_tied_table_goes_from_one_stage_to_two_and_back(tmp_path: Path) -> None:
    """In a pipeline it is two parameters, `table.weight` and `head.weight`."""
    options = {"tied": True}
    before, _ = cases.saved_by(0, tmp_path, "plain", options)
    assert "model.head.weight" not in before
    first, _ = on_ranks(2, cases.handed_on, tmp_path, options)
    read = first["4 pipeline"][0]
    for kind in ("model.{}", "optimizer.{}.exp_avg", "optimizer.{}.exp_avg_sq"):
        head = read[kind.format("head.weight")]
        assert torch.equal(head, before[kind.format("table.weight")])
    last = restored(tmp_path, built("plain", seed=4, **options))
    assert same(last.whole(), before)


def test_a_master_is_kept_and_not_its_16_bit_copy(tmp_path: Path) -> None:
    def halves(seed: int) -> Part:
        part = built("plain", seed=seed)
        for module in part.modules:
            module.to(torch.bfloat16)
        part.optimizer = Optimizer(part.named(), Settings(lr=0.01))
        return part

    first = halves(0)
    first.step(0)
    stored(tmp_path, first)
    again = restored(tmp_path, halves(5))
    assert same(first.whole(), again.whole())
    assert first.whole()["model.layers.0.up.weight"].dtype is torch.float32
    name, weight = next(again.named())
    assert weight.dtype is torch.bfloat16
    assert torch.equal(weight, dict(first.named())[name])
    full = restored(tmp_path)  # a run in 32 bits goes on from the masters
    assert same(full.whole(), first.whole())


def test_flags_are_the_running_optimizers_and_the_rate_is_kept(tmp_path: Path) -> None:
    part = built("plain")
    part.step(0)
    stored(tmp_path, part)
    other = built("plain", seed=1)
    make = partial(torch.optim.AdamW, lr=0.5, fused=True, weight_decay=0.3)
    other.optimizer = Optimizer(other.named(), Settings(), make)
    restored(tmp_path, other)
    (group,) = other.optimizer.inner.param_groups
    assert (group["fused"], group["foreach"], group["weight_decay"]) == (
        True,
        None,
        0.3,
    )
    assert group["lr"] == 0.01
    other.step(1)


def test_momentum_and_no_state_at_all(tmp_path: Path) -> None:
    for name in ("sgd", "sgd-momentum", "adam"):
        part = built("plain")
        part.optimizer = Optimizer(part.named(), Settings(name=name))
        part.step(0)
        part.step(1)
        stored(tmp_path / name, part)
        again = built("plain", seed=2)
        again.optimizer = Optimizer(again.named(), Settings(name=name))
        restored(tmp_path / name, again)
        part.step(2)
        again.step(2)
        assert same(part.whole(), again.whole())


def test_before_the_first_step_there_is_no_state(tmp_path: Path) -> None:
    part = built("plain")
    stored(tmp_path, part, step=0)
    again = restored(tmp_path)
    part.step(0)
    again.step(0)
    assert same(part.whole(), again.whole())


def test_buffers_are_kept(tmp_path: Path) -> None:
    norm = nn.BatchNorm1d(3)
    norm(torch.randn(8, 3))
    save(tmp_path, step=1, parts=[norm], optimizer=None, meta=META)
    other = nn.BatchNorm1d(3)
    assert load(tmp_path, parts=[other], optimizer=None, meta=META) == 1
    assert same(norm.state_dict(), other.state_dict())
    assert int(other.num_batches_tracked or 0) == 1
