"""A user's module trained over ranks, and by one process in plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from costmodel.layout import Uniform, spell_out
from profiles import load_model
from profiles.models import Job
from profiles.trace import module_of
from runtime.checkpoint import held
from runtime.modules import Cut, cut_of
from runtime.optim import Settings
from runtime.train import Setup, Trainer, module_build, samples
from tests.support.measured_module import loss_of

BATCH, STEPS, RATE = 4, 2, 0.01
SGD = Settings(name="sgd", lr=RATE, weight_decay=0.0, clip=1e9)
Trained = tuple[list[float], list[float], dict[str, Tensor]]  # losses, norms, weights


def job(reference: str) -> Job:
    """Training it with a few samples a step."""
    return load_model(reference).job(global_batch=BATCH, optimizer="sgd")


def on_rank(
    rank: int, reference: str, cases: Sequence[Mapping[str, Any]]
) -> list[Trained]:
    """What this rank sees of each layout of *cases*."""
    with cut_once():
        return [_trained(reference, case) for case in cases]


@contextmanager
def cut_once() -> Iterator[None]:
    """Within it a module is traced once, however many trainers are made of it."""
    made: dict[str, Cut] = {}

    def cut(module: Any, example: Any, name: str) -> Cut:
        if name not in made:
            made[name] = cut_of(module, example, name)
        return made[name]

    with patch.object(module_build, "cut_of", cut):
        yield


def _trained(reference: str, case: Mapping[str, Any]) -> Trained:
    asked = job(reference)
    choice = Uniform(**{"precision": "fp32", "micro_batch": 1, **case})
    trainer = Trainer(
        asked,
        spell_out(choice, asked.graph, BATCH),
        samples("synthetic", asked.spec, 0),  # type: ignore[arg-type]
        settings=SGD,
        setup=Setup(seed=0, device=torch.device("cpu")),
    )
    results = [trainer.step(number) for number in range(STEPS)]
    weights = {
        one.name: one.whole().clone()
        for one in held([stage.module for stage in trainer.stages])
    }
    return (
        [one.loss for one in results],
        [one.gradient_norm for one in results],
        weights,
    )


def plain(reference: str) -> Trained:
    """The same by the module itself, sample by sample."""
    asked = job(reference)
    source = samples("synthetic", asked.spec, 0)  # type: ignore[arg-type]
    torch.manual_seed(0)
    module, _ = module_of(reference, meta=False)
    update = torch.optim.SGD(module.parameters(), lr=RATE)
    losses, norms = [], []
    for step in range(STEPS):
        update.zero_grad()
        found = 0.0
        for number in range(step * BATCH, (step + 1) * BATCH):
            given = source.inputs(torch.tensor([number]))
            loss = loss_of(module(*given.args, **given.kwargs)) / BATCH
            loss.backward()
            found += float(loss.detach())
        losses.append(found)
        made = [one.grad for one in module.parameters() if one.grad is not None]
        norms.append(float(torch.cat([one.flatten() for one in made]).double().norm()))
        update.step()
    return losses, norms, {n: one.detach() for n, one in module.named_parameters()}
