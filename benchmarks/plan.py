"""How long `plan` takes, in a process of its own, and what its search did.

    python benchmarks/plan.py [QUESTION …]

Each question is one argument, as on the command line: "--model gpt-13b --gpus 64".
Seconds and memory are those of the whole process: starting Python, reading the
catalogue, searching, writing the document.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
REPEATS = 3
QUESTIONS = (
    "--model gpt-tiny --gpus 4 --cluster cpu",
    "--model gpt-13b --gpus 7",
    "--model gpt-13b --gpus 64",
    "--model gpt-13b --gpus 64 --cluster p3.16xlarge",
    "--model gpt-13b --gpus 64 --framework megatron-deepspeed",
    "--model llama3-70b --gpus 64 --cluster dgx-h100",
    "--model gpt-175b --gpus 64",
    "--model gpt-175b --gpus 1024",
    "--model gpt-1t --gpus 3072",
    "--model llama3-405b --gpus 16384 --cluster dgx-h100",
)


class Run(NamedTuple):
    """One whole process."""

    seconds: float
    peak_bytes: int
    document: dict[str, Any]


def run(question: str) -> Run:
    """Ask *question* in a new process."""
    command = [sys.executable, "-m", "planner", *question.split(), "--json"]
    start = perf_counter()
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdout is not None, "it was asked for"
    text = child.stdout.read()
    _, _, used = os.wait4(child.pid, 0)
    child.returncode = 0
    seconds = perf_counter() - start
    return Run(seconds, used.ru_maxrss * 1024, json.loads(text))


def main(questions: list[str]) -> None:
    print(f"{'seconds':>8}{'MiB':>6}{'considered':>12}{'simulated':>10}{'gap':>8}")
    for question in questions or QUESTIONS:
        runs = [run(question) for _ in range(REPEATS)]
        best = min(runs, key=lambda one: one.seconds)
        search, bound = best.document["search"], best.document["bound"]
        gap = "none" if bound is None else f"{bound['gap']:.2%}"
        print(
            f"{best.seconds:8.2f}{best.peak_bytes / 2**20:6.0f}"
            f"{search['layouts_considered']:12,}{search['layouts_simulated']:10,}"
            f"{gap:>8}  {question}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
