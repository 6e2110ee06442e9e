"""A command `execute` that goes on, seen from outside: its processes, its history, and
what is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODEL = "--model gpt-tiny --seq-len 32 --global-batch 4 --precision fp32"
LAYOUT = f"{MODEL} --dp 2 --zero 1 --gpus 2"
LIMIT_S = 1800.0
POLL_S = 0.005

START = ["-m", "runtime"]
COLD = """
import os, sys
del os.pidfd_open
from runtime.__main__ import main
sys.exit(main(sys.argv[1:], "execute"))
"""


class Wrong(Exception):
    """A run did not end as it should."""


def environment(folder: Path) -> dict[str, str]:
    """Of a run whose temporary files, its history among them, are in *folder*."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
    }


def command(package: str, words: str) -> list[str]:
    return [sys.executable, "-m", package, *words.split()]


def layout(folder: Path, words: str = LAYOUT) -> Path:
    """A layout file for *words* in *folder*."""
    file = folder / "layout.json"
    done = subprocess.run(
        [*command("costmodel", words), "--cluster", "dgx-a100-80gb", "--out", file],
        env=environment(folder),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise Wrong(done.stderr)
    return file


@dataclass(kw_only=True)
class Running:
    """A command `execute` that goes on, and what can be seen of it."""

    process: subprocess.Popen[str]
    folder: Path
    history: Path | None = None  # None: that of the temporary files

    def events(self, name: str) -> list[dict[str, Any]]:
        """What its history says so far."""
        found = [self.history] if self.history else self.folder.glob("*/history.jsonl")
        lines: list[dict[str, Any]] = []
        for file in found:
            with suppress(OSError):
                for line in file.read_text().splitlines():
                    with suppress(ValueError):
                        lines.append(json.loads(line))
        return [line for line in lines if line["event"] == name]

    def workers(self) -> list[int]:
        """Its ranks' processes."""
        known = parents()
        words = {pid: words_of(pid) for pid in descendants(self.process.pid)}
        servers = [pid for pid, said in words.items() if "fork_server serve" in said]
        forked = [pid for pid in words if known.get(pid) in servers]
        alone = [
            pid for pid, said in words.items() if "-m runtime.launch.worker" in said
        ]
        return forked or alone

    def saving(self) -> bool:
        """Whether a rank is in the middle of a checkpoint."""
        folders = self.folder.glob("meshwright-run-*/*/attempt_*")
        newest = max(folders, key=lambda one: one.stat().st_mtime, default=None)
        if newest is None:
            return False
        return any(b"saving" in file.read_bytes() for file in newest.glob("*/words"))

    def until(self, happened: Callable[[], bool], what: str) -> None:
        """Wait for what *happened*; raises Wrong where it does not."""
        end = time.monotonic() + LIMIT_S
        while not happened():
            if self.process.poll() is not None or time.monotonic() > end:
                raise Wrong(f"no {what}: {self.ended()}")
            time.sleep(POLL_S)

    def ended(self) -> str:
        errors = self.folder / "errors"
        return errors.read_text() if errors.exists() else "it said nothing"

    def document(self) -> dict[str, Any]:
        """Its answer; raises Wrong unless it ended well and left nobody behind."""
        out, _ = self.process.communicate(timeout=LIMIT_S)
        if self.process.returncode:
            raise Wrong(f"exit code {self.process.returncode}: {self.ended()}")
        found: dict[str, Any] = json.loads(out)
        return found


@contextmanager
def execute(
    words: str,
    folder: Path,
    *,
    within: Sequence[str] = (),
    history: Path | None = None,
) -> Iterator[Running]:
    """`execute` with *words*, its files in *folder*; gone when this is left."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "errors").open("a") as errors:
        process = subprocess.Popen(
            [*within, sys.executable, *START, *words.split(), "--json"],
            env=environment(folder),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    running = Running(process=process, folder=folder, history=history)
    try:
        yield running
    finally:
        left = descendants(process.pid)
        if process.poll() is None:
            process.kill()
        process.communicate()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def parents() -> dict[int, int]:
    """The parent of every process that has not ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                text = (entry / "stat").read_text().rpartition(")")[2].split()
                if text[0] != "Z":
                    found[int(entry.name)] = int(text[1])
    return found


def parent_of(pid: int) -> int:
    return parents().get(pid, 0)


def descendants(of: int) -> list[int]:
    """All that *of* started, and what that started."""
    known, found, new = parents(), [], [of]
    while new:
        new = [pid for pid, parent in known.items() if parent in new]
        found += new
    return found


def words_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def losses(log: Path) -> list[float]:
    """Those of every step, each once and in order; raises Wrong otherwise."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [row["step"] for row in rows]
    if steps != list(range(1, len(steps) + 1)):
        raise Wrong(f"steps are lost or done twice: {steps}")
    return [row["loss"] for row in rows]


def furthest(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference between two runs' losses."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def require_sound(states: Path) -> None:
    """Raise Wrong where something half-written is left, or a file has not the hash that
    it had."""
    from runtime.checkpoint import verified

    left = [one.name for one in states.iterdir() if one.name.endswith(".partial")]
    verdicts = verified(states, None)
    faults = [fault for one in verdicts for fault in one.faults]
    if left or faults or not verdicts:
        raise Wrong(f"{states} holds {left or faults or 'nothing'}")


def strays(folder: Path) -> list[int]:
    """Processes that still work in *folder*."""
    found = []
    for pid in parents():
        with suppress(OSError):
            if Path(f"/proc/{pid}/cwd").resolve().is_relative_to(folder):
                found.append(pid)
    return found


def uninterrupted(file: Path, folder: Path, steps: int) -> list[float]:
    words = f"{file} --device cpu --steps {steps} --log log.jsonl"
    with execute(words, folder) as running:
        running.document()
    return losses(folder / "log.jsonl")
