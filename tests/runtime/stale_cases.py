"""What ranks do of runs that are not flushed, and the same on one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp
from typing import Any

import torch
from torch import Tensor

from costmodel.layout.layout import Layout
from costmodel.layout.strategy import Uniform, spell_out
from profiles.models.job import Job
from runtime.data.sources import source
from runtime.models.decoder import Stage, decoder_of, initialise
from runtime.optim.optimizer import Settings
from runtime.train.build import Setup, _units
from runtime.train.stale import Late, StaleStep
from runtime.train.trainer import Trainer
from tests.oracles.stale_training import LateStage, Rule, Version, late_steps
from tests.support.training_cases import job

SEED, DATA_SEED = 7, 3
SGD = Settings(name="sgd", lr=0.3, clip=0.0, weight_decay=0.1)
MOMENTUM = Settings(name="sgd-momentum", lr=0.02, clip=0.0, weight_decay=0.0)


def untied(batch: int) -> Job:
    """The small GPT with a head of its own."""
    found = job("gpt")
    spec = replace(decoder_of(found), tied_embeddings=False)
    return replace(found, spec=spec, global_batch=batch)


def layout_of(schedule: str, pp: int, batches: int, dp: int = 1) -> Layout:
    choice = Uniform(pp=pp, dp=dp, schedule=schedule, precision="fp32", zero=0)
    return spell_out(choice, untied(batches * dp).graph, batches * dp)


def trained(
    rank: int,
    layout: Layout,
    runs: Sequence[int],
    settings: Settings,
    asked: Job,
    late: Late | None = None,
) -> dict[str, Any]:
    """Runs of so many steps, each filled and drained; what this rank then has."""
    trainer = Trainer(
        asked,
        layout,
        source("synthetic", vocab=512, seq_len=asked.seq_len, seed=DATA_SEED),
        settings=settings,
        setup=Setup(seed=SEED, device=torch.device("cpu")),
        late=late,
    )
    losses, held, number = [], [], 0
    for steps in runs:
        until = number + steps
        while number < until:
            result = trainer.step(number, until=until)
            losses.append(result.loss)
            hooks = trainer._step
            held.append(hooks.weights.held if isinstance(hooks, StaleStep) else 1)
            number += 1
        assert trainer._executor.in_flight == 0
    (stage,) = trainer.stages
    named = stage.module.named_parameters()
    return {
        "losses": losses,
        "held": held,
        "parameters": {name: one.detach().clone() for name, one in named},
        "in_flight": trainer._executor.in_flight,
    }


def stages_of(
    layout: Layout, asked: Job, rule_of: Callable[[int], Rule]
) -> list[LateStage]:
    """The stages as the trainer makes them, each with a rule of its own."""
    spec = decoder_of(asked)
    found = []
    for rank, plan in enumerate(layout.stages):
        with torch.device("meta"):
            module = Stage(spec, plan.layers)
        for prefix, unit in _units(module):
            initialise(
                unit,
                prefix=prefix,
                layers=spec.layers,
                seed=SEED,
                device=torch.device("cpu"),
            )
        found.append(LateStage(module, rule_of(rank)))
    return found


class Descent:
    """SGD; matrices decay."""

    def __init__(self, settings: Settings = SGD) -> None:
        self.settings = settings

    def update(self, weights: Version, gradients: Version) -> Version:
        made: Version = {}
        for name, one in weights.items():
            decay = self.settings.weight_decay if one.dim() > 1 else 0.0
            made[name] = one - self.settings.lr * (gradients[name] + decay * one)
        return made

    def forward(self, number: int, weights: Version) -> Version:
        return weights

    def backward(self, number: int, weights: Version) -> Version:
        return weights


class Compensated(Descent):
    """SGD with momentum, spike compensation and weight prediction, *late* updates."""

    def __init__(self, late: float) -> None:
        super().__init__(MOMENTUM)
        self.late = late
        self.velocity: list[Version] = []

    def update(self, weights: Version, gradients: Version) -> Version:
        mu, rate = self.settings.beta1, self.settings.lr
        a, b = mu**self.late, sum(mu**power for power in range(int(self.late)))
        before = self.velocity[-1] if self.velocity else {}
        moved = {
            name: mu * before.get(name, 0.0) + one for name, one in gradients.items()
        }
        self.velocity.append(moved)
        return {
            name: one - rate * (a * moved[name] + b * gradients[name])
            for name, one in weights.items()
        }

    def forward(self, number: int, weights: Version) -> Version:
        if not number:
            return weights
        ahead, moved = self.settings.lr * self.late, self.velocity[number - 1]
        return {name: one - ahead * moved[name] for name, one in weights.items()}


class Corrected(Descent):
    """SGD with PipeMare's T1, over so many *steps*, and T2; of one run."""

    def __init__(self, late: float, tau: float, steps: int) -> None:
        super().__init__()
        self.late, self.tau, self.steps = late, max(tau, 1.0), steps
        self.delta: list[Version] = []

    def update(self, weights: Version, gradients: Version) -> Version:
        power = 1 - min(len(self.delta) / self.steps, 1)
        slow = Descent(replace(SGD, lr=SGD.lr * self.tau**-power))
        made = slow.update(weights, gradients)
        kept = exp(-2 / self.late) if self.late else 0.0
        before = self.delta[-1] if self.delta else {}
        self.delta.append(
            {
                name: kept * before.get(name, 0.0) + (1 - kept) * (made[name] - one)
                for name, one in weights.items()
            }
        )
        return made

    def backward(self, number: int, weights: Version) -> Version:
        if not number:
            return weights
        delta = self.delta[number - 1]
        return {name: one - self.late * delta[name] for name, one in weights.items()}


def alone(
    layout: Layout,
    asked: Job,
    runs: Sequence[int],
    rule_of: Callable[[int], Rule] = lambda _: Descent(),
) -> dict[str, Any]:
    """The same runs on one process."""
    data = source("synthetic", vocab=512, seq_len=asked.seq_len, seed=DATA_SEED)
    stages, losses, number = stages_of(layout, asked, rule_of), [], 0
    for steps in runs:
        batches = []
        for step in range(number, number + steps):
            whole = data.sequences(step * asked.global_batch, asked.global_batch)
            batches.append([pair(one) for one in whole.split(1)])
        losses += late_steps(layout.schedule, stages, batches)
        number += steps
    return {
        "losses": losses,
        "parameters": [stage.versions[-1] for stage in stages],
    }


def pair(sequences: Tensor) -> tuple[Tensor, Tensor]:
    return sequences[:, :-1], sequences[:, 1:]


def learned(rank: int, layouts: Sequence[Layout], steps: int) -> list[list[float]]:
    """The losses of runs of AdamW on the synthetic chain, one for each layout."""
    adamw = Settings(lr=3e-3)
    return [
        trained(rank, one, (steps,), adamw, untied(one.micro_batches))["losses"]
        for one in layouts
    ]
