"""A user's module saved by one layout and read by others, on each rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from costmodel.layout import Uniform, spell_out
from runtime.checkpoint.checkpoint import load, save
from runtime.optim import Settings
from runtime.train import Setup, Trainer, samples
from runtime.weights import exported, load_weights, save_weights, weights_of
from tests.support.trained_module import BATCH, cut_once, job

ADAM = Settings(lr=0.01)
STEPS = 2
Losses = dict[str, list[float]]
Case = Mapping[str, Any]


def trainer(
    reference: str, case: Case, data: str = "synthetic", seed: int = 0
) -> Trainer:
    asked = job(reference)
    choice = Uniform(**{"precision": "fp32", "micro_batch": 1, **case})
    return Trainer(
        asked,
        spell_out(choice, asked.graph, BATCH),
        samples(data, asked.spec, 0),  # type: ignore[arg-type]
        settings=ADAM,
        setup=Setup(seed=seed, device=torch.device("cpu")),
    )


@cut_once()
def resumed(
    rank: int, reference: str, cases: Mapping[str, Case], folder: str
) -> tuple[list[float], Losses]:
    """Losses of `STEPS` steps after those that the first of *cases* saved, by it and by
    every case that goes on from there."""
    first = next(iter(cases))
    one = trainer(reference, cases[first])
    for number in range(STEPS):
        one.step(number)
    meta = {"job": {"model": reference}}
    parts = [held.module for held in one.stages]
    save(Path(folder), step=STEPS, parts=parts, optimizer=one.optimizer, meta=meta)
    after = _onward(one)
    found = {}
    for name, case in cases.items():
        again = trainer(reference, case, seed=7)
        parts = [held.module for held in again.stages]
        load(Path(folder), parts=parts, optimizer=again.optimizer, meta=meta)
        found[name] = _onward(again)
    return after, found


def _onward(one: Trainer) -> list[float]:
    return [one.step(STEPS + number).loss for number in range(STEPS)]


@cut_once()
def handed_on(
    rank: int, reference: str, cases: Mapping[str, Case], folder: str
) -> dict[str, float]:
    """The first loss of every case from weights that the case before it wrote after a
    step that changed them; the first one from the factory's."""
    found: dict[str, float] = {}
    before: str | None = None
    for number, (name, case) in enumerate(cases.items()):
        one = trainer(reference, case, seed=number)
        parts = [held.module for held in one.stages]
        if before is not None:
            load_weights(weights_of(one.job, Path(before)), parts, one.optimizer)
        if before is None:
            one.step(0)
        out = str(Path(folder, name.replace(" ", "-")))
        export = exported(before, out, one.job)
        assert export is not None
        mesh = one.mesh
        first = mesh["dp"].get_local_rank() + mesh["tp"].get_local_rank() == 0
        save_weights(export, parts, writes=first)
        found[name] = one.evaluate(one.source, 1)
        before = out
    return found


@cut_once()
def trained_on(
    rank: int, reference: str, cases: Mapping[str, Case], data: str
) -> Losses:
    """Losses of each case, from *data*; the last two are of evaluations: on it, and on
    synthetic samples."""
    found: Losses = {}
    for name, case in cases.items():
        one = trainer(reference, case, data)
        found[name] = [one.step(number).loss for number in range(STEPS)]
        other = samples("synthetic", one.job.spec, 0)  # type: ignore[arg-type]
        found[name] += [one.evaluate(source, 1) for source in (one.source, other)]
    return found
