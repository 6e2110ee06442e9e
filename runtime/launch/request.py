"""`Request`: what `execute` asks its worker processes to do, as a file between them.

Machines that train together were asked for the same: each has its own command line.

Ranks that read other data, start from another seed or another checkpoint would train
on, and what comes out would be of no model.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from profiles.errors import RunFailed
from profiles.files import decode, read_json, shown, write_text
from runtime.checkpoint import latest
from runtime.optim import Settings
from runtime.train import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A training run. `layout` is a layout file's document; paths are absolute."""

    layout: dict[str, Any]
    device: str  # cpu or cuda
    steps: int
    data: str
    seed: int
    threads: int
    result: str
    settings: Settings = field(default_factory=Settings)
    checkpoint_dir: str | None = None
    checkpoint_every: int = 0
    resume: bool = False
    timeout_s: float = 600.0  # of a collective that somebody does not join
    training: Training = field(default_factory=Training)
    observe: bool = False  # listen to more steps, for samples of them
    record: bool = False  # the actions of the first step, with their collectives
    compiled: bool = False  # torch.compile of each layer
    offload_dir: str | None = None  # of a drive; None: that of temporary files
    progress: bool = True

    def write(self, path: Path) -> None:
        """Write it for the workers."""
        write_text(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Request:
        """Read what `write` wrote; raises InvalidFile."""
        return decode(read_json(path, what="the run's request"), cls, what="request")


def question(request: Request, data: str) -> dict[str, Any]:
    """What must be the same on every machine, by what a user calls it; *data* is the
    fingerprint of what it reads."""
    training, folder = request.training, request.checkpoint_dir
    newest = None if folder is None else latest(Path(folder))
    whole = ("job", "gpus", "layout")
    return {
        "the layout file": _digest({name: request.layout[name] for name in whole}),
        "--device": request.device,
        "--seed": request.seed,
        "what --data begins with": data,
        "--steps": request.steps,
        **{f"the optimizer's {k}": v for k, v in asdict(request.settings).items()},
        "--lr-schedule": training.lr_schedule,
        "--warmup-steps": training.warmup_steps,
        "--decay-steps": training.decay_steps,
        "--min-lr": training.min_lr,
        "an --eval-data": training.eval_data is not None,
        "--eval-every": training.eval_every,
        "--eval-batches": training.eval_batches,
        "a --trace": training.trace is not None,
        "a --checkpoint-dir": folder is not None,
        "--checkpoint-every": request.checkpoint_every,
        "--resume": request.resume,
        "the newest checkpoint": None if newest is None else newest.name,
        "--observe": request.observe,
        "--record": request.record,
        "--compile": request.compiled,
        "PyTorch's version": str(torch.__version__),
    }


def require_agreed(own: Mapping[str, Any]) -> None:
    """Raise RunFailed where ranks were asked for unlike things; all call it at once.

    Ranks of one machine have one request, so there is nothing to ask.
    """
    ranks = dist.get_world_size()
    if int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) == ranks:
        return
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, dict(own))
    first = everyone[0]
    for rank, other in enumerate(everyone):
        unlike = [name for name in first if other.get(name) != first[name]]
        if unlike:
            name = unlike[0]
            raise RunFailed(
                f"rank {rank}'s machine was asked for other things than rank 0's: "
                f"{name} is {shown(other.get(name))} there and {shown(first[name])} "
                "here; give every machine the same command and the same files"
            )


def _digest(value: Any) -> str:
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"
