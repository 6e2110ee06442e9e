"""A run whose states are on a drive: room is asked for first, a resumed run goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from costmodel.stored import write_layout
from costmodel.uniform import Uniform, spell_out
from profiles.errors import Unsupported
from profiles.models.parameters import parameters
from profiles.units import TB
from runtime import drive_room, run
from runtime.drive_room import needed_bytes, require_drive
from tests.runtime.wishes import wish
from tests.training_cases import BATCH, choice_of, job

Run = Callable[..., CompletedProcess[str]]


def layout_of(name: str) -> Any:
    return spell_out(choice_of("gpt", name), job("gpt").graph, BATCH)


@pytest.mark.parametrize(
    ("name", "ranks"), [("drive", 1), ("zero2-drive", 2), ("fsdp2-states-drive", 2)]
)
def test_a_node_needs_value_and_moments_of_every_parameter(
    name: str, ranks: int
) -> None:
    """However they are sharded; in 32 bits shards are what is updated."""
    asked = job("gpt")
    trained = parameters(asked.spec).total
    needed = needed_bytes(asked, layout_of(name), ranks)
    assert needed == pytest.approx(12 * trained, rel=1e-3)


def test_room_is_asked_for_before_a_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was about to start")

    file = tmp_path / "layout.json"
    write_layout(file, job("gpt"), "local", layout_of("zero2-drive"))
    monkeypatch.setattr(run, "launch", never)
    assert not run.prepare(wish(file)).remarks
    monkeypatch.setattr(drive_room, "needed_bytes", lambda *_: 1e6 * TB)
    with pytest.raises(Unsupported, match=r"optimizer to nvme needs 909,495 TiB in"):
        run.prepare(wish(file))


def test_other_layouts_need_no_drive(tmp_path: Path) -> None:
    plain = spell_out(Uniform(precision="fp32"), job("gpt").graph, BATCH)
    missing = tmp_path / "missing"
    assert require_drive(job("gpt"), plain, missing, local_ranks=1) == ()
    with pytest.raises(Unsupported, match="--offload-dir"):
        require_drive(job("gpt"), layout_of("drive"), missing, local_ranks=1)


@pytest.mark.matrix
def test_a_resumed_run_is_the_whole_one(run: Run, tmp_path: Path) -> None:
    small = (
        "--model gpt-tiny --seq-len 32 --global-batch 4 --gpus 2 --precision bf16 "
        "--zero 1 --offload optimizer --offload-to nvme"
    )
    done = run("simulate", *small.split(), "--out", "a.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "drive").mkdir()
    options = "--device cpu --steps 4 --checkpoint-every 2 --offload-dir drive --json"
    logs = []
    for resumed in ("", "--resume"):
        log = tmp_path / f"log{resumed}.jsonl"
        if resumed:
            shutil.rmtree(tmp_path / "state" / "step-000004")
        more = f"--checkpoint-dir state --log {log} {resumed} {options}"
        done = run("execute", "a.json", *more.split(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        logs.append([(row["step"], row["loss"], row["gradient_norm"]) for row in rows])
        assert list((tmp_path / "drive").iterdir()) == []
    assert logs[0][2:] == logs[1]
    assert len(logs[1]) == 2
