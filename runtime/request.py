"""`Request`: what `execute` asks its worker processes to do, as a file between them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from profiles.documents import decode, read_json, write_text
from runtime.optimizer import Settings
from runtime.training import Training


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
