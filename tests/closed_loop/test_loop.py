"""profile → plan → execute, as a user types them; the prediction is of this run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.cli import execute
from tests.support.forked_workers import forked

Run = Callable[..., subprocess.CompletedProcess[str]]
Document = Callable[..., dict[str, Any]]
SMALL = "--model gpt-tiny --seq-len 64 --global-batch 4"
LOCAL = "--gpus 2 --cluster local --profile samples.json"
# `profile --quick` in fewer seconds and with smaller messages than a user's.
PROFILE = """
import sys
from profiles.__main__ import main
from profiles.measure import session
session.QUICK_S, session.QUICK_BYTES = 1.0, 2**23
sys.exit(main())
"""


@pytest.fixture
def document(
    run: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Document:
    """What a command says, run as a process; `execute` here, its workers forked
    (tests/runtime/launch start some)."""
    monkeypatch.chdir(tmp_path)

    def asked(*argv: str) -> dict[str, Any]:
        if argv[0] == "execute":
            with forked():
                code = execute.run([*argv[1:], "--json"])
            out, err = capsys.readouterr()
        else:
            done = run(*argv, "--json", cwd=tmp_path)
            code, out, err = done.returncode, done.stdout, done.stderr
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    return asked


@pytest.mark.slow
def test_the_loop_closes(document: Document, tmp_path: Path) -> None:
    taken = f"--out samples.json --quick --device cpu --nproc 2 {SMALL}"
    assert document("python", "-c", PROFILE, *taken.split())["operators"] > 0
    planned = document(
        *f"plan {SMALL} {LOCAL} --zero 0 --probe 1 --out plan.json".split()
    )
    assert planned["bound"]["gap"] == 0
    assert planned["estimate"]["price_sources"]["roofline"] < 0.1
    tp = f"simulate {SMALL} {LOCAL} --tp 2 --micro-batch 2 --out tp.json"
    pp = f"simulate {SMALL} {LOCAL} --pp 2 --micro-batch 1 --out pp.json"
    for command in (tp, pp):
        document(*command.split())
    probed = executed(document, "plan.json --steps 5 --probe")
    (only,) = probed["probe"]
    assert probed["picked"] == only["file"]
    assert len(only["rounds_s"]) == 2
    executed(document, "pp.json --steps 5")
    seen = executed(document, "tp.json --steps 7 --observe samples.json")
    _observed(seen, tmp_path)
    again = document("simulate", "tp.json", "--profile", "samples.json")
    assert again["step_time_s"] != seen["predicted"]["step_time_s"]


def executed(document: Document, asked: str) -> dict[str, Any]:
    """What `execute` of a layout says, and holds the prediction against."""
    file, _, steps, *_ = asked.split()
    more = "--device cpu --profile samples.json --record"
    seen = document("execute", *asked.split(), *more.split())
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
