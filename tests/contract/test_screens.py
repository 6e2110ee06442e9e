"""What every command shows: within 80 columns, and without escape codes in a pipe or
with NO_COLOR."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]
TINY = ("--model", "gpt-tiny", "--gpus", "4", "--global-batch", "8")
MODULES = {
    "plan": "planner",
    "simulate": "costmodel",
    "profile": "profiles",
    "execute": "runtime",
    "meshwright": "profiles.commandline.main",
}
SCREEN = 24  # lines of an answer without --details
ANSWERS = [
    ("plan", *TINY),
    ("plan", "--model", "gpt-13b", "--gpus", "64"),
    ("plan", "llama3-8b", "--gpus", "8", "--cluster", "l40s-8x"),
    ("simulate", *TINY),
    ("simulate", "--model", "gpt-175b", "--gpus", "1024", "--tp", "8", "--pp", "16"),
]
SHOWN = [
    *ANSWERS,
    ("plan", *TINY, "--details"),
    ("plan", *TINY, "--explain", "--why-not", "pp=2", "--tokens", "1e9"),
    ("plan", *TINY, "--compare-searches"),
    ("plan", "--model", "gpt-tiny", "--gpus", "2..8", "--tokens", "1e9"),
    ("plan", "--inference", "llama3-8b", "--gpus", "1", "--top", "1"),
    ("simulate", *TINY, "--details"),
    ("simulate", *TINY, "--sweep", "tp=1,2", "--sweep", "micro-batch=1,2"),
    ("simulate", *TINY, "--gpus", "16", "--global-batch", "16", "--compare-networks"),
    ("simulate", *TINY, "--compare-data-parallel"),
    ("simulate", "--runs", "docs/asked-runs.csv"),
    ("simulate", "--inference", "llama3-8b", "--gpus", "1"),
    ("simulate", "docs/examples/megatron_gpt3_175b.sh"),
    ("meshwright", "models"),
    ("meshwright", "clusters"),
    ("meshwright", "devices"),
    ("meshwright", "frameworks"),
    *((name, "--help") for name in MODULES),
]


def argv(words: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", MODULES[words[0]], *words[1:]]


def ids(words: tuple[str, ...]) -> str:
    return " ".join(words)


@pytest.mark.parametrize("words", SHOWN, ids=ids)
def test_in_a_pipe_no_line_is_wider_than_80_columns_and_none_has_codes(
    words: tuple[str, ...], run: Run
) -> None:
    done = run("python", *argv(words)[1:], env={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    if words in ANSWERS:
        assert len(lines) <= SCREEN
        assert lines[-1].startswith("--details adds ")


def test_a_run_and_its_answer_fit_80_columns(run: Run, tmp_path: Path) -> None:
    layout = str(tmp_path / "layout.json")
    asked = ("--model", "gpt-tiny", "--gpus", "1", "--cluster", "cpu")
    more = ("--global-batch", "4", "--seq-len", "32", "--out", layout)
    assert run("python", "-m", "costmodel", *asked, *more).returncode == 0
    trained = (layout, "--steps", "4", "--device", "cpu")
    done = run("python", "-m", "runtime", *trained, env={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert len(lines) <= SCREEN
    assert any(line.startswith("Trained 4 steps in ") for line in lines)
    assert any(line.startswith("step 2/4  loss ") for line in lines)
    assert "\x1b" not in done.stdout


def on_a_terminal(words: tuple[str, ...], environment: dict[str, str]) -> str:
    """What a terminal of 80 columns gets to see of the command."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        argv(words),
        cwd=ROOT,
        env={**environment, "TERM": "xterm-256color", "COLUMNS": "80"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            part = os.read(ours, 65536)
        except OSError:  # nobody writes any more
            break
        if not part:
            break
        seen += part
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return seen.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("words", [SHOWN[0], ("meshwright", "models")], ids=ids)
def test_a_terminal_shows_colours_unless_it_is_asked_not_to(
    words: tuple[str, ...], environment: dict[str, str]
) -> None:
    kept = {k: v for k, v in environment.items() if k not in ("NO_COLOR", "CI")}
    assert "\x1b[" in on_a_terminal(words, kept)
    plain = on_a_terminal(words, {**kept, "NO_COLOR": "1"})
    assert "\x1b" not in plain
    shown = [line.rpartition("\r")[2] for line in plain.splitlines()]
    assert max(map(len, shown)) <= 80
