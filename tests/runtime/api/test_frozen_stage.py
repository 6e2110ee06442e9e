"""Own pipelines a stage of which is frozen train what is left of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costmodel.layout.strategy import Uniform, spell_out
from tests.runtime.ranks import on_ranks
from tests.support.apart import apart
from tests.support.small_layouts import FP32, ON_DRIVE, OPTIMIZER
from tests.support.training_cases import job

WIDTH, BATCH, STEPS, MOST = 8, 4, 2, 0.05
PP2 = replace(FP32, pp=2, zero=0, micro_batch=2)
CASES: dict[str, Uniform] = {
    "plain": PP2,
    "gpipe": replace(PP2, schedule="gpipe"),
    "away": replace(PP2, offload=OPTIMIZER),
    "drive": replace(PP2, offload=ON_DRIVE),
    "sharded": replace(PP2, dp=2, zero=1, zero_group=2),
}
FROZEN = {"first": slice(0, 3), "last": slice(3, 6)}  # of six units, three a stage


def units() -> list[nn.Module]:
    torch.manual_seed(5)
    return [nn.Linear(WIDTH, WIDTH) for _ in range(6)]


def freeze(chain: list[nn.Module], which: str) -> None:
    for unit in chain[FROZEN[which]]:
        unit.requires_grad_(requires_grad=False)


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    one, two = (torch.randn(BATCH, WIDTH, generator=generator) for _ in range(2))
    return one, two


def alone(which: str) -> dict[str, Tensor]:
    chain = units()
    freeze(chain, which)
    model = nn.Sequential(*chain)
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, targets = batch(step)
        update.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), MOST)
        update.step()
    return {name: one.detach() for name, one in model.named_parameters()}


def trained(rank: int, names: list[str]) -> dict[str, Any]:
    return {
        f"{name} {which}": _trained(CASES[name], which)
        for name in names
        for which in FROZEN
    }


def _trained(choice: Uniform, which: str) -> dict[str, Tensor]:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    from runtime.api.entry import clip_gradients, optimizer, parallelize

    chain = units()
    freeze(chain, which)
    asked = spell_out(choice, job("gpt").graph, BATCH)
    model: Any = parallelize(nn.Sequential(*chain), asked, units=chain, loss=F.mse_loss)
    update = optimizer(model, asked, partial(torch.optim.SGD, lr=0.1, foreach=False))
    place = dist.get_rank() % choice.dp
    for step in range(STEPS):
        inputs, targets = (one.chunk(choice.dp)[place] for one in batch(step))
        update.zero_grad()
        model.step(inputs, targets)
        clip_gradients(model, asked, MOST, updated=update)
        update.step()
    own = {name.removeprefix("units."): one for name, one in model.named_parameters()}
    return {
        name: one.full_tensor().detach() if isinstance(one, DTensor) else one.detach()
        for name, one in own.items()
    }


@pytest.mark.parametrize(("ranks", "names"), [(2, ["plain", "gpipe", "away", "drive"])])
def test_a_frozen_stage_hands_on_and_stays(ranks: int, names: list[str]) -> None:
    _check(ranks, names)


@pytest.mark.slow
def test_a_frozen_stage_that_is_sharded_hands_on_and_stays() -> None:
    _check(4, ["sharded"])


def _check(ranks: int, names: list[str]) -> None:
    found = on_ranks(ranks, trained, names)
    before = {
        name: one.detach() for name, one in nn.Sequential(*units()).named_parameters()
    }
    for which, frozen in FROZEN.items():
        wanted = alone(which)
        still = range(6)[frozen]
        for name in names:
            parts = [rank[f"{name} {which}"] for rank in found]
            whole = {key: one for part in parts for key, one in part.items()}
            assert apart(whole, wanted) < 1e-6, f"{name} {which}"
            moved = {int(key[0]) for key in whole if not whole[key].equal(before[key])}
            assert moved == set(range(6)) - set(still)
