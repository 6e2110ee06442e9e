"""profile → plan → execute, as a user types them; the prediction is of this run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
SMALL = "--model gpt-tiny --seq-len 64 --global-batch 4"
LOCAL = "--gpus 2 --cluster local --profile samples.json"


def document(run: Run, folder: Path, command: str) -> dict[str, Any]:
    done = run(*command.split(), "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_the_loop_closes(run: Run, tmp_path: Path) -> None:
    taken = f"profile --out samples.json --quick --device cpu --nproc 2 {SMALL}"
    assert document(run, tmp_path, taken)["operators"] > 0
    planned = document(
        run, tmp_path, f"plan {SMALL} {LOCAL} --zero 0 --probe 1 --out plan.json"
    )
    assert planned["bound"]["gap"] == 0
    assert planned["estimate"]["price_sources"]["roofline"] < 0.1
    tp = f"simulate {SMALL} {LOCAL} --tp 2 --micro-batch 2 --out tp.json"
    pp = f"simulate {SMALL} {LOCAL} --pp 2 --micro-batch 1 --out pp.json"
    for command in (tp, pp):
        document(run, tmp_path, command)
    probed = executed(run, tmp_path, "plan.json --steps 5 --probe")
    (only,) = probed["probe"]
    assert probed["picked"] == only["file"]
    assert len(only["rounds_s"]) == 2
    executed(run, tmp_path, "pp.json --steps 5")
    seen = executed(run, tmp_path, "tp.json --steps 7 --observe samples.json")
    _observed(seen, tmp_path)
    again = document(run, tmp_path, "simulate tp.json --profile samples.json")
    assert again["step_time_s"] != seen["predicted"]["step_time_s"]


def executed(run: Run, folder: Path, asked: str) -> dict[str, Any]:
    """What `execute` of a layout says, and holds the prediction against."""
    file, _, steps, *_ = asked.split()
    more = "--device cpu --profile samples.json --record"
    seen = document(run, folder, f"execute {asked} {more}")
    assert len(seen["losses"]) == seen["steps"] == int(steps)
    assert seen["losses"][-1] < seen["losses"][0]
    # Messages of other sizes than were measured are fitted: between two that were.
    assert seen["predicted"]["price_sources"]["roofline"] < 0.1
    assert seen["error"]["step_time"] > -1
    # Bytes are no timings: they agree however busy the machine is.
    assert abs(seen["error"]["peak_memory"]) < 0.15, file
    assert seen["recorded"][0]["action"] == "0F0"
    return seen


def _observed(seen: dict[str, Any], folder: Path) -> None:
    """What a run saw is what the next question is priced by."""
    assert seen["observed"] > 5
    parts, step_s = seen["parts_s"], seen["step_time_s"]["median"]
    assert parts["tensor_comm"] > 0 < parts["compute"]
    assert sum(parts.values()) >= step_s * 0.99
    assert {"compute", "tensor parallel"} <= {row["part"] for row in seen["missed"]}
    samples = json.loads((folder / "samples.json").read_text())
    told = [row for row in samples["collectives"] if "observed" in row["provenance"]]
    assert {row["key"].split("|")[0] for row in told} >= {"all_gather"}


def test_a_profile_of_nothing_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "samples.json").write_text("{}")
    done = run("plan", *SMALL.split(), *LOCAL.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "not a file of samples" in done.stderr
