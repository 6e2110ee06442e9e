"""`--recovery replica`: a rank is killed, in a step or in its update, and no step is
lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.simulation.layout_files import write_layout
from profiles.errors import Contradiction, MeshwrightError
from runtime.checkpoint.verification import verified
from runtime.launch.run import prepare
from runtime.train.options import RunOptions
from tests.support.small_jobs import job

STEPS, KILLED_IN = 8, 5
DP = Uniform(precision="fp32", micro_batch=1, dp=2, zero=0)
# A worker that ends itself in a step, as by a SIGKILL from outside.
KILLING = """
import os, signal, sys
from runtime.launch import worker
from runtime.launch.processes import restarts
from runtime.optim.optimizer import Optimizer
from runtime.train.trainer import Trainer

def killed(owner, name, when):
    really = getattr(owner, name)
    def instead(self, *given, **settings):
        if not restarts() and os.environ["RANK"] == "1" and when(given):
            os.kill(os.getpid(), signal.SIGKILL)
        return really(self, *given, **settings)
    setattr(owner, name, instead)

place, number, request = sys.argv[1], int(sys.argv[2]), sys.argv[3]
calls = iter(range(10**9))
if place == "forward":
    from runtime.pipeline.executor import Executor
    killed(Executor, "_forward", lambda _: next(calls) == number * 2 + 1)
elif place == "update":
    killed(Optimizer, "_publish", lambda _: next(calls) == number)
elif place == "loss":
    killed(Trainer, "_mean", lambda _: next(calls) == number)
elif place == "saving":
    from runtime.checkpoint import checkpoint
    really = checkpoint._extent
    def instead(partial, rank, one):
        if not restarts() and rank == 1 and one.step > number:
            os.kill(os.getpid(), signal.SIGKILL)
        return really(partial, rank, one)
    checkpoint._extent = instead
worker.main(request)
os._exit(0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "killing.py").write_text(KILLING)
    for name, choice in LAYOUTS.items():
        asked = job(global_batch=4)
        layout = spell_out(choice, asked.graph, asked.global_batch)
        write_layout(folder / f"{name}.json", asked, "local", layout)
    return folder


LAYOUTS = {
    "dp2": DP,
    "zero1": replace(DP, zero=1, zero_group=2),
}
# Starts `execute` with workers of the program above.
STARTING = """
import sys
from runtime.launch import run
from runtime.launch.launcher import Program
place, number, *argv = sys.argv[1:]

def program(self, asked):
    given = [place, number, str(asked)]
    return Program(arguments=given, module="killing", grace_s=20)

if place != "nowhere":
    run.Run._program = program
from runtime.cli import execute
sys.exit(execute.run(argv))
"""


def ran(folder: Path, name: str, place: str, *more: str) -> tuple[dict[str, Any], str]:
    """The document of a run, and what it said."""
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}{os.pathsep}{folder}"}
    options = f"--device cpu --steps {STEPS} --lr 1e-2 --json".split()
    done = subprocess.run(
        [
            *(sys.executable, "-c", STARTING, place, str(KILLED_IN)),
            *(str(folder / f"{name}.json"), *options, *more),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document, done.stderr


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> list[float]:
    losses: list[float] = ran(folder, "dp2", "nowhere")[0]["losses"]
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        "update",
        pytest.param("forward", marks=pytest.mark.matrix),
        pytest.param("loss", marks=pytest.mark.matrix),
    ],
)
def test_no_step_is_lost_with_a_replica(
    folder: Path, tmp_path: Path, undisturbed: list[float], place: str
) -> None:
    where = ("--checkpoint-dir", str(tmp_path), "--recovery", "replica")
    seen, said = ran(folder, "dp2", place, *where, "--max-restarts", "1")
    assert "a worker died" in said
    assert f"step {seen['first_step']} is recovered from what ranks 0 held" in said
    assert seen["first_step"] >= KILLED_IN, "not one step that had ended is done again"
    assert seen["losses"] == pytest.approx(undisturbed[seen["first_step"] :], abs=1e-6)
    assert not list(tmp_path.glob("emergency*"))


@pytest.mark.slow
def test_shards_without_a_replica_go_on_from_the_checkpoint(
    folder: Path, tmp_path: Path, undisturbed: list[float]
) -> None:
    where = ("--checkpoint-dir", str(tmp_path), "--recovery", "replica")
    every = ("--checkpoint-every", "2", "--max-restarts", "1")
    seen, said = ran(folder, "zero1", "forward", *where, *every)
    assert f"what ranks wrote of step {KILLED_IN} lacks" in said
    assert seen["first_step"] == KILLED_IN - 1
    assert seen["losses"] == pytest.approx(undisturbed[seen["first_step"] :], abs=1e-5)


@pytest.mark.slow
def test_half_a_save_beside_training_is_none(
    folder: Path, tmp_path: Path, undisturbed: list[float]
) -> None:
    """A rank is killed when its files are written and not all are hashed."""
    where = ("--checkpoint-dir", str(tmp_path), "--async-save")
    every = ("--checkpoint-every", "2", "--max-restarts", "1")
    seen, said = ran(folder, "zero1", "saving", *where, *every)
    assert "a worker died" in said
    assert seen["first_step"] == KILLED_IN - 1
    assert seen["losses"] == pytest.approx(undisturbed[seen["first_step"] :], abs=1e-5)
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "step-000006",
        "step-000008",
    ]
    assert not any(one.faults for one in verified(tmp_path))


def test_what_a_recovery_needs_is_said(folder: Path, tmp_path: Path) -> None:
    options = RunOptions(
        layout=folder / "dp2.json", steps=1, device="cpu", recovery="replica"
    )
    with pytest.raises(Contradiction, match="--recovery replica needs --checkpoint"):
        prepare(options)
    asked = job(global_batch=4)
    choice = replace(DP, offload=Offload(optimizer=True))
    layout = spell_out(choice, asked.graph, asked.global_batch)
    write_layout(tmp_path / "away.json", asked, "local", layout)
    away = replace(
        options, layout=tmp_path / "away.json", checkpoint_dir=tmp_path / "states"
    )
    with pytest.raises(MeshwrightError, match="takes updates back"):
        prepare(away)
