"""The command `execute` in this process, with workers that are forked.

Those that the launcher starts take seconds to import torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from runtime.launch import run
from runtime.launch.launcher import Program
from runtime.launch.processes import Worker
from runtime.launch.run import Request
from tests.runtime.ranks import on_ranks

Execute = Callable[..., tuple[int, str, str]]


@contextmanager
def forked() -> Iterator[None]:
    """Within it, what launches workers forks them."""
    with patch.object(run, "launch", _launched):
        yield


def _launched(program: Program, *, nproc: int, **_: Any) -> None:
    on_ranks(nproc, _worked, nproc, *program.arguments)


def _worked(rank: int, world_size: int, request: str) -> None:
    """What `runtime.launch.worker` does, where the process group is there already."""
    from runtime.launch.worker import Run

    logging.getLogger("torch.distributed.tensor._redistribute").setLevel("ERROR")
    worker = Worker(
        rank=rank,
        world_size=world_size,
        device=torch.device("cpu"),
    )
    Run(Request.read(Path(request)), worker).run()
