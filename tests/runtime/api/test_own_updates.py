"""Updates of a loop of one's own whose states are away: they go on after a load."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from costmodel.layout.offload import Offload
from costmodel.layout.strategy import spell_out
from profiles.errors import Unsupported
from runtime.api.optimizers import Update
from tests.support.small_layouts import FP32, ON_DRIVE
from tests.support.training_cases import BATCH, job

GRAPH = job("gpt").graph
ASKED = spell_out(replace(FP32, offload=ON_DRIVE), GRAPH, BATCH)
ON_HOST = Offload(optimizer=True)


def test_states_of_a_loops_own_update_go_on_after_a_load() -> None:
    first, second = (nn.Linear(3, 2) for _ in range(2))
    made = [
        Update(one, spell_out(asked, GRAPH, BATCH), partial(torch.optim.AdamW, lr=0.1))
        for one, asked in (
            (first, replace(FP32, offload=ON_HOST)),
            (second, replace(FP32, offload=ON_HOST, dp=2, zero=3)),
        )
    ]
    stepped(first, made[0], 1)
    second.load_state_dict(first.state_dict())
    made[1].load_state_dict(deepcopy(made[0].state_dict()))
    for model, update in zip((first, second), made, strict=True):
        stepped(model, update, 2)
        assert update.param_groups[0]["lr"] == 0.1
        assert all(one.grad is None for one in model.parameters())
    assert torch.equal(first.weight, second.weight)


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adam])
def test_states_of_a_loops_own_update_on_a_drive_go_on_after_a_load(
    make: Any, tmp_path: Path
) -> None:
    models = [nn.Linear(3, 2) for _ in range(3)]
    first, second, plain_ = models
    plain_.load_state_dict(first.state_dict())
    how = partial(make, lr=0.1)
    before, alone = Update(first, ASKED, how, tmp_path), how(plain_.parameters())
    stepped(first, before, 1)
    stepped(plain_, alone, 1)
    second.load_state_dict(first.state_dict())
    after = Update(second, ASKED, how, tmp_path)
    after.load_state_dict(deepcopy(before.state_dict()))
    alone.zero_grad()
    for model, update in zip(models, (before, after, alone), strict=True):
        stepped(model, update, 2)
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.weight, plain_.weight)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make",
    [
        partial(torch.optim.AdamW, amsgrad=True),
        partial(torch.optim.SGD, momentum=0.9, dampening=0.5),
        torch.optim.Adagrad,
    ],
)
def test_states_that_are_not_known_before_a_step_go_to_no_drive(make: Any) -> None:
    with pytest.raises(Unsupported, match="choose AdamW or Adam"):
        Update(nn.Linear(3, 2), ASKED, make, None)


def test_a_folder_that_takes_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"takes no file .*: no such file"):
        Update(nn.Linear(3, 2), ASKED, torch.optim.Adam, tmp_path / "none")


def stepped(model: nn.Module, update: Any, seed: int) -> None:
    """Two backwards and an update."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(2):
        model(torch.randn(4, 3, generator=generator)).square().sum().backward()
    update.step()
