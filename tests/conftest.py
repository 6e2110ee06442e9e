"""Settings of every test: the same examples each time, and a way to run commands."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None, max_examples=30)
settings.register_profile("thorough", deadline=None, max_examples=300)
settings.load_profile("steady")  # --hypothesis-profile=thorough looks further

# Each worker has a core of its own: threads of more would wait for each other's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch are loaded

# A shell's background jobs ignore Ctrl-C, as would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
Completed = subprocess.CompletedProcess[str]
Obtained = Callable[[object], None]

gc.disable()  # of 6,000 tests and what they import hardly anything is garbage


def pytest_collection_finish() -> None:
    """What was imported stays: no collection of garbage looks through it."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder that holds the four packages."""
    return ROOT


@pytest.fixture
def obtained(record_property: Callable[[str, object], None]) -> Obtained:
    """Notes what a test marked `row` found, for the table of docs/systems.md."""

    def note(found: object) -> None:
        record_property("obtained", found)

    return note


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """This one, with our packages found and Python's own defaults in force."""
    kept = {name: text for name, text in os.environ.items() if name[:6] != "PYTHON"}
    return {**kept, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def run(environment: dict[str, str]) -> Callable[..., Completed]:
    """Runs a real process; console scripts are named as a user names them."""

    def running(
        *argv: str, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> Completed:
        return subprocess.run(
            command_line(argv),
            cwd=cwd or ROOT,
            env={**environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return running


def command_line(argv: Sequence[str]) -> list[str]:
    """``python`` is this interpreter, and other commands are installed beside it."""
    program, *rest = argv
    if program == "python":
        return [sys.executable, *rest]
    return [str(Path(sys.executable).parent / program), *rest]
