"""What ranks do of runs that are not flushed, and the same on one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
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
from runtime.train.stale import Late
from runtime.train.trainer import Trainer
from tests.oracles.stale_training import LateStage, Version, late_steps
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
            held.append(trainer._step.weights.held)
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


def stages_of(layout: Layout, asked: Job, settings: Settings) -> list[LateStage]:
    """The stages as the trainer makes them, each with an update of its own."""
    spec = decoder_of(asked)
    found = []
    for plan in layout.stages:
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
        found.append(LateStage(module, partial(descent, settings)))
    return found


def descent(settings: Settings, weights: Version, gradients: Version) -> Version:
    """A step of SGD; matrices decay."""
    made: Version = {}
    for name, one in weights.items():
        decay = settings.weight_decay if one.dim() > 1 else 0.0
        made[name] = one - settings.lr * (gradients[name] + decay * one)
    return made


def alone(layout: Layout, asked: Job, runs: Sequence[int]) -> dict[str, Any]:
    """The same runs on one process."""
    data = source("synthetic", vocab=512, seq_len=asked.seq_len, seed=DATA_SEED)
    stages, losses, number = stages_of(layout, asked, SGD), [], 0
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
