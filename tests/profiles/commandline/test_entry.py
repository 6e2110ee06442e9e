"""Leaving a command: exit codes of real processes, whatever happens to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from profiles.commandline.commands import LONGEST_LINE, guarded, one_interrupt, one_line

Run = Callable[..., subprocess.CompletedProcess[str]]

TALKATIVE = """
import sys
from profiles.commandline.commands import command

@command("talk", example="talk")
def talk(*, as_json):
    for _ in range(100_000):
        print("x" * 100)

sys.exit(talk.run())
"""
WAITING = """
import sys, time
from profiles.commandline.commands import enter
sys.exit(enter("slow:command", []))
"""
ENDING = """
import sys, time
from profiles.commandline.commands import guarded, one_interrupt

def body():
    try:
        print("waits", flush=True)
        time.sleep(60)
    finally:
        print("ends", flush=True)
        end = time.monotonic() + 0.3  # signals arrive in here, where sleep would go on
        while time.monotonic() < end:
            pass
        print("ended", flush=True)

with one_interrupt():
    code = guarded("t", body)
sys.exit(code)
"""


def test_an_internal_error_is_one_line_with_a_hint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MESHWRIGHT_DEBUG", raising=False)
    assert guarded("plan", lambda: 1 // 0) == 70
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("plan: internal error: ZeroDivisionError: ")
    assert "MESHWRIGHT_DEBUG=1" in err


def test_debug_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_DEBUG", "1")
    assert guarded("plan", lambda: 1 // 0) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_file_that_the_system_refuses_is_a_wrong_question(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = tmp_path / "layout.json"
    assert guarded("simulate", lambda: len(missing.read_bytes())) == 2
    assert "layout.json': No such file or directory" in capsys.readouterr().err


def test_a_line_has_no_control_characters_and_an_end() -> None:
    assert one_line("a\n\tb\x1b[31m\udc80") == "a b?[31m?"
    assert len(one_line("x" * 10 * LONGEST_LINE)) == LONGEST_LINE


def test_a_reader_that_leaves_early_is_no_error(environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TALKATIVE],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141


@pytest.mark.parametrize("verb", ["profile", "meshwright"])
def test_a_full_disk_is_one_line(environment: dict[str, str], verb: str) -> None:
    path = Path(sys.executable).parent / verb
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [path, "--help"],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    said = f"{verb}: cannot write the answer: No space left on device\n"
    assert done.stderr.decode() == said


def test_a_closed_stdout_is_one_line(run: Run) -> None:
    script = "import os; os.close(1); os.execv({0!r}, [{0!r}, '-m', 'profiles'])"
    done = run("python", "-c", script.format(sys.executable))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "standard output is closed" in done.stderr


def test_ctrl_c_while_the_command_is_imported(
    environment: dict[str, str], tmp_path: Path, root: Path
) -> None:
    started = tmp_path / "started"
    room = f"import time\nopen({str(started)!r}, 'w').close()\ntime.sleep(60)\n"
    (tmp_path / "slow.py").write_text(room)
    both = f"{root}{os.pathsep}{tmp_path}"
    with subprocess.Popen(
        [sys.executable, "-c", WAITING],
        env={**environment, "PYTHONPATH": both},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for _ in range(600):
            if started.exists():
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "command: interrupted\n")


def test_ctrl_c_again_while_the_process_ends_changes_nothing(
    environment: dict[str, str], tmp_path: Path, root: Path
) -> None:
    (tmp_path / "ending.py").write_text(ENDING)
    with subprocess.Popen(
        [sys.executable, "-m", "ending"],
        env={**environment, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "ends\n"
        for _ in range(3):
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "ended\n", "t: interrupted\n")


def test_ctrl_c_is_as_before_where_there_was_none() -> None:
    before = signal.getsignal(signal.SIGINT)
    with one_interrupt():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_inside_exec_is_exit_130_too(
    environment: dict[str, str], tmp_path: Path, root: Path
) -> None:
    """`python -m` ends by a signal where an interrupt went through `exec` of a text."""
    (tmp_path / "interrupted.py").write_text(
        "import sys\nfrom profiles.commandline.commands import guarded\n"
        "sys.exit(guarded('t', lambda: exec('raise KeyboardInterrupt')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"],
        env={**environment, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (130, "t: interrupted\n")


def test_output_survives_a_narrow_encoding(run: Run) -> None:
    module = "profiles.commandline.commands"
    script = f"import {module} as c; c.guarded('t', lambda: print('4 µs'))"
    done = run("python", "-c", script, env={"PYTHONIOENCODING": "ascii"})
    assert (done.stdout, done.stderr) == ("4 ?s\n", "")
