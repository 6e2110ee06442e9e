"""A run in 16-bit floats that is resumed goes on with its loss scale, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.simulation.layout_files import write_layout
from runtime.launch.processes import process_group
from runtime.launch.run import Request
from runtime.launch.worker import Run
from runtime.optim.optimizer import FIRST, INTERVAL
from tests.support.small_jobs import job

SAVED, DONE = 2, 5
HALVED = FIRST / 2  # what an overflow before would have left
SOON = INTERVAL - SAVED - 1  # good steps: the first one after the resume doubles it


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision", ["fp16", pytest.param("amp-fp16", marks=pytest.mark.matrix)]
)
def test_a_resumed_run_has_the_scale_that_it_would_have_had(
    tmp_path: Path, precision: str
) -> None:
    whole = carried_out(tmp_path, precision, steps=DONE, scale=(HALVED, SOON))
    folder = tmp_path / "states"
    first = carried_out(
        tmp_path, precision, steps=SAVED, scale=(HALVED, SOON), folder=folder
    )
    assert first["scale"] == (HALVED, SOON + SAVED)
    rest = carried_out(tmp_path, precision, steps=DONE, folder=folder, resume=True)
    assert whole["scale"] == (FIRST, DONE - SAVED - 1)
    assert rest["scale"] == whole["scale"]
    assert first["losses"] + rest["losses"] == whole["losses"]
    for name, value in whole["masters"].items():
        assert torch.equal(value, rest["masters"][name]), name


def carried_out(
    place: Path,
    precision: str,
    *,
    steps: int,
    scale: tuple[float, int] | None = None,
    folder: Path | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """A worker's whole run in this process, from *scale* on or a checkpoint's."""
    asked = job()
    choice = Uniform(precision=precision, micro_batch=1, zero=0)
    layout = spell_out(choice, asked.graph, asked.global_batch)
    write_layout(place / "layout.json", asked, "local", layout)
    request = Request(
        layout=json.loads((place / "layout.json").read_text()),
        device="cpu",
        steps=steps,
        data="synthetic",
        seed=1,
        threads=1,
        result=str(place / "result.json"),
        checkpoint_dir=None if folder is None else str(folder),
        resume=resume,
        progress=False,
    )
    with process_group("cpu", timeout_s=20) as worker:
        run = Run(request, worker)
        if scale is not None:
            run.trainer.scale.value, run.trainer.scale.good_steps = scale
        run.run()
    trainer = run.trainer
    return {
        "scale": (trainer.scale.value, trainer.scale.good_steps),
        "losses": json.loads((place / "result.json").read_text())["losses"],
        "masters": {
            leaf.name: leaf.value.detach().clone() for leaf in trainer.optimizer.leaves
        },
    }
