"""What `execute` is asked for, with nothing out of the ordinary."""

from __future__ import annotations

from pathlib import Path

from runtime.launch.run import Wish
from runtime.optim.optimizer import Settings


def wish(layout: Path) -> Wish:
    return Wish(
        layout=layout,
        steps=1,
        data="synthetic",
        seed=0,
        device="cpu",
        profiles=(),
        settings=Settings(),
        checkpoint_dir=None,
        checkpoint_every=0,
        resume=False,
        max_restarts=0,
        nnodes=1,
        rdzv_endpoint=None,
        record=False,
        progress=False,
    )
