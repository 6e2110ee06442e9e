"""A run handed from one layout to every other: what each saves, and what each reads.

State is compared by the hash of every whole tensor, data by the loss of the next step.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from costmodel.layout.strategy import Uniform, spell_out
from profiles.models.job import Job
from runtime.checkpoint.checkpoint import load, save
from runtime.checkpoint.state import written
from runtime.data.sources import source
from runtime.optim.optimizer import Settings
from runtime.train.build import Setup
from runtime.train.trainer import Trainer
from tests.runtime.ranks import on_ranks
from tests.support.small_jobs import GPT, MIXTURE, job

BEFORE, BATCH = 2, 8
LOSS: Final = 1e-5  # nats: what sums in another order make of one step
ONE = Uniform(precision="fp32", micro_batch=1)
TP = replace(ONE, tp=2, sequence_parallel=True)
LAYOUTS: Final[dict[str, Uniform]] = {
    "one rank": ONE,
    "tp2": TP,
    "pp2": replace(ONE, pp=2),
    "fsdp4": replace(ONE, dp=4, zero=3, zero_group=4),
    "dp2×tp2": replace(TP, dp=2, zero=0),
    "dp2×tp2, ZeRO-3": replace(TP, dp=2, zero=3, zero_group=2),
    "hsdp 2×2": replace(ONE, dp=4, zero=3, zero_group=2),
    "ZeRO-1 of 2": replace(ONE, dp=2, zero=1, zero_group=2),
    "tp2×pp2": replace(TP, pp=2),
    "interleaved": replace(ONE, pp=2, schedule="interleaved", virtual_stages=2),
    "chimera": replace(ONE, pp=2, schedule="chimera"),
    "cp2": replace(ONE, cp=2, zero=0),
}
MIXED: Final[dict[str, Uniform]] = {
    name: LAYOUTS[name] for name in ("one rank", "pp2", "fsdp4")
} | {
    "ep2": replace(ONE, dp=2, ep=2, zero=0),
    "ep2, ZeRO-2 of 4": replace(ONE, dp=4, ep=2, zero=2, zero_group=4),
    "tp2, etp2": replace(TP, etp=2),
}
DENSE_JOB = job(replace(GPT, layers=4), global_batch=BATCH)
MIXED_JOB = job(replace(MIXTURE, layers=4), global_batch=BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """From one layout to another: tensors that are not the same to the bit, and how far
    the next loss is from the first layout's own."""

    unlike: tuple[str, ...]
    tensors: int
    loss: float

    @property
    def holds(self) -> bool:
        return not self.unlike and self.loss <= LOSS


def matrix(
    asked: Job, layouts: Mapping[str, Uniform], folder: Path
) -> dict[tuple[str, str], Handed]:
    """By (from, to)."""
    first = _on_their_ranks(saved, asked, layouts, folder)
    after = _on_their_ranks(read, asked, layouts, folder)
    found = {}
    for source_name, before in first.items():
        for name, everyone in after.items():
            seen = everyone[source_name]
            state, now = before["state"], seen["state"]
            unlike = [one for one in state if state[one] != now.get(one)]
            assert seen["step"] == BEFORE
            found[source_name, name] = Handed(
                unlike=tuple(unlike),
                tensors=len(state),
                loss=abs(seen["loss"] - before["loss"]),
            )
    return found


def _on_their_ranks(
    work: Any, asked: Job, layouts: Mapping[str, Uniform], folder: Path
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for ranks in sorted({one.gpus for one in layouts.values()}):
        some = {name: one for name, one in layouts.items() if one.gpus == ranks}
        found |= on_ranks(ranks, work, asked, some, list(layouts), str(folder))[0]
    return found


def saved(
    rank: int,
    asked: Job,
    layouts: Mapping[str, Uniform],
    names: Sequence[str],
    folder: str,
) -> dict[str, Any]:
    """By layout: the state after some steps, which is saved, and the next loss."""
    found = {}
    for name, choice in layouts.items():
        trainer = trainer_of(asked, choice)
        for number in range(BEFORE):
            trainer.step(number)
        save(Path(folder, name), step=BEFORE, **_state(trainer))
        state = hashes(trainer, asked)
        found[name] = {"state": state, "loss": trainer.step(BEFORE).loss}
    return found


def read(
    rank: int,
    asked: Job,
    layouts: Mapping[str, Uniform],
    names: Sequence[str],
    folder: str,
) -> dict[str, Any]:
    """By layout and by whose checkpoint: the state as it is read, and the next loss."""
    found: dict[str, Any] = {}
    for name, choice in layouts.items():
        found[name] = {}
        trainer = trainer_of(asked, choice, seed=9)
        for other in names:
            step = load(Path(folder, other), **_state(trainer))
            state = hashes(trainer, asked)
            loss = trainer.step(step).loss
            found[name][other] = {"state": state, "loss": loss, "step": step}
            trainer.forget()
    return found


def trainer_of(asked: Job, choice: Uniform, seed: int = 1) -> Trainer:
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel("ERROR")
    return Trainer(
        asked,
        spell_out(choice, asked.graph, BATCH),
        source("synthetic", vocab=80, seq_len=asked.seq_len, seed=3),
        settings=Settings(lr=1e-2),
        setup=Setup(seed=seed, device=torch.device("cpu")),
    )


def _state(trainer: Trainer) -> dict[str, Any]:
    return {
        "parts": [held.module for held in trainer.stages],
        "optimizer": trainer.optimizer,
        "meta": {"job": "resharding"},
    }


def hashes(trainer: Trainer, asked: Job) -> dict[str, str]:
    """SHA-256 of every whole tensor of the state, wherever it is; a tied head is its
    table."""
    tied = getattr(asked.spec, "tied_embeddings", False)
    parts = [held.module for held in trainer.stages]
    own = {}
    for name, value in written(parts, trainer.optimizer).items():
        called = name.replace("head.weight", "embedding.table.weight") if tied else name
        own[called] = _hash(value)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    found: dict[str, str] = {}
    for one in everyone:
        for name, value in one.items():
            assert found.setdefault(name, value) == value, f"{name} differs by rank"
    return found


def _hash(value: Tensor) -> str:
    whole = value.full_tensor() if isinstance(value, DTensor) else value
    content = whole.detach().contiguous().numpy().tobytes()
    return hashlib.sha256(content).hexdigest()
