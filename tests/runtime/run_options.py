"""What `execute` is asked for, with nothing out of the ordinary."""

from __future__ import annotations

from pathlib import Path

from runtime.train.options import RunOptions


def run_options(layout: Path) -> RunOptions:
    return RunOptions(layout=layout, steps=1, device="cpu", progress=False)
