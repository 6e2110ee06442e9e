"""States on the host: the same update, the same checkpoints, gradients added up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from costmodel.layout.offload import Offload
from runtime.offload.host import ON_THEIR_WAY, Host, HostGradients, HostOptimizer
from runtime.offload.policy import StateOffload, level
from runtime.optim.optimizer import Optimizer, Settings
from tests.runtime.checkpoint_cases import Part, built, restored, same, stored

CPU = torch.device("cpu")
ON_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=ON_CUDA)]
NAMES = ("adamw", "adam", "sgd-momentum")


def part(dtype: torch.dtype, *, away: bool, name: str = "adamw", seed: int = 0) -> Part:
    """A small model whose optimizer is here, or on the host."""
    found = built("plain", seed=seed)
    for module in found.modules:
        module.to(dtype)
    settings = Settings(name=name, lr=0.01)
    found.optimizer = (
        HostOptimizer(found.named(), settings, CPU)
        if away
        else Optimizer(found.named(), settings)
    )
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_update_on_the_host_is_the_same(dtype: torch.dtype, name: str) -> None:
    here, away = (part(dtype, away=away, name=name) for away in (False, True))
    for number in range(3):
        here.step(number)
        away.step(number)
    assert same(here.whole(), away.whole())
    ours = dict(away.named())
    assert all(torch.equal(one, ours[name]) for name, one in here.named())


def test_masters_are_copies_of_their_own() -> None:
    found = part(torch.float32, away=True)
    assert isinstance(found.optimizer, HostOptimizer)
    for leaf in found.optimizer.leaves:
        assert leaf.value.data_ptr() != leaf.parameter.data_ptr()


def test_a_checkpoint_goes_on_wherever_the_states_are(tmp_path: Path) -> None:
    first = part(torch.bfloat16, away=True)
    first.step(0)
    stored(tmp_path, first)
    away = restored(tmp_path, part(torch.bfloat16, away=True, seed=5))
    here = restored(tmp_path, part(torch.bfloat16, away=False, seed=6))
    for one in (first, away, here):
        one.step(1)
    assert same(first.whole(), away.whole())
    assert same(first.whole(), here.whole())


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_gradients_are_added_up_on_the_host(device: torch.device) -> None:
    down, made = HostGradients(Host(device)), torch.arange(6.0).view(2, 3)
    for _ in range(2):
        down.begin()
        for number in range(3 * ON_THEIR_WAY):
            name, size = f"weight {number % ON_THEIR_WAY}", 1 + number // ON_THEIR_WAY
            down.take(name, (made * size).to(device))
        sums = down.sums()
        assert len(sums) == ON_THEIR_WAY
        assert all(one.device == CPU for one in sums.values())
        assert all(torch.equal(one, made * 6) for one in sums.values())


@ON_CUDA
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_device_gets_its_weights_back(dtype: torch.dtype) -> None:
    """The fused update of host and device differ by rounding at most."""
    device = torch.device("cuda")
    torch.manual_seed(0)
    values = torch.randn(300, 200)
    here, there = (
        nn.Parameter(values.to(dtype, copy=True)),
        nn.Parameter(values.to(device, dtype, copy=True)),
    )
    settings = Settings(lr=0.01)
    ours = Optimizer([("weight", here)], settings)
    theirs = HostOptimizer([("weight", there)], settings, device)
    for _ in range(5):
        gradient = torch.randn_like(values)
        ours.step({"weight": gradient})
        theirs.step({"weight": gradient.to(device)})
    (leaf,) = theirs.leaves
    assert leaf.value.device == CPU
    assert leaf.value.is_pinned()
    assert torch.equal(there.cpu(), here)


def test_who_keeps_what_where() -> None:
    optimizer, both = Offload(optimizer=True), Offload(optimizer=True, parameters=True)
    kept = {zero: StateOffload.of(optimizer, zero) for zero in range(4)}
    assert [one.masters for one in kept.values()] == [True, False, False, True]
    assert [one.shards for one in kept.values()] == [False, True, True, False]
    assert StateOffload.of(both, 3) == StateOffload(shards=True, passes=True)
    on_drive = Offload(optimizer=True, tier="nvme")
    in_file = StateOffload(on_drive=True, gradients=True)
    assert StateOffload.of(on_drive, 0) == StateOffload(masters=True, on_drive=True)
    assert StateOffload.of(on_drive, 1) == replace(in_file, shards=True)
    assert StateOffload.of(on_drive, 3) == replace(in_file, masters=True)
    assert StateOffload.of(Offload(), 3) == StateOffload()
    levels = [level(zero, Offload(), ranks=1) for zero in range(4)]
    assert levels == [0, 0, 0, 0]
    assert level(3, both, ranks=1) == 3
    assert level(2, optimizer, ranks=4) == 2
