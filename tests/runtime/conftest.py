"""What tests of the command `execute` share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.cli import execute
from runtime.launch import run
from runtime.launch.launcher import Program
from runtime.launch.processes import Worker
from runtime.launch.run import Request
from tests.runtime.ranks import on_ranks

Execute = Callable[..., tuple[int, str, str]]


@pytest.fixture
def executing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Execute:
    """Runs `execute` with workers that are forked, as those that the launcher starts
    take seconds to import torch: the exit code, stdout and stderr."""

    def launched(program: Program, *, nproc: int, **_: Any) -> None:
        on_ranks(nproc, worked, nproc, *program.arguments)

    def running(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()  # what was printed before is none of its own
        code = execute.run(list(argv))
        return code, *capsys.readouterr()

    monkeypatch.setattr(run, "launch", launched)
    return running


def worked(rank: int, world_size: int, request: str) -> None:
    """What `runtime.launch.worker` does, where the process group is there already."""
    from runtime.launch.worker import Run

    logging.getLogger("torch.distributed.tensor._redistribute").setLevel("ERROR")
    worker = Worker(
        rank=rank,
        world_size=world_size,
        device=torch.device("cpu"),
    )
    Run(Request.read(Path(request)), worker).run()
