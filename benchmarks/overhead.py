"""Our runs against the plainest PyTorch of the same layout, in pairs.

    python -m benchmarks.overhead [--pairs 40] [--ways ddp fsdp tp pipeline]

Two ranks hold both sides and train with them step by step in turn (`overhead_worker`);
by hand it is torch's DDP, fully_shard, tensor.parallel and pipelining (`plain`). A pair
gives the throughput of ours over the other's; of all pairs the median and its interval
at 95 % by the sign test. On a machine that others use, the same of CPU seconds tells
more: what a step computes, without what it waits. --keep FILE writes every pair,
--page docs/execute.md puts the table between the page's markers.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch

from benchmarks.closed_loop import MODELS
from benchmarks.intervals import median_interval
from benchmarks.overhead_worker import RANKS, Request
from benchmarks.pages import measuring, put
from profiles.files import read_json
from profiles.measure.machine import cpu_name
from runtime.launch.launcher import Program, launch

WAYS = ("ddp", "fsdp", "tp", "pipeline")
LEAST = 0.97  # of the throughput by hand, asked of the interval's lower end
WALL, CPU = 0, 1
Pairs = list[tuple[tuple[float, float], tuple[float, float]]]


def measured(wish: argparse.Namespace) -> dict[str, Pairs]:
    """Seconds of ours and by hand of every pair, by way."""
    with tempfile.TemporaryDirectory(prefix="meshwright-") as scratch:
        asked, result = Path(scratch, "request.json"), Path(scratch, "result.json")
        Request(
            model=wish.model,
            ways=tuple(wish.ways),
            pairs=wish.pairs,
            result=str(result),
        ).write(asked)
        worker = Program(arguments=[str(asked)], module="benchmarks.overhead_worker")
        launch(worker, nproc=RANKS)
        found = read_json(result, what="the pairs")
    assert isinstance(found, dict)
    return found


def table(found: dict[str, Pairs]) -> str:
    """One row a way, as Markdown."""
    lines = [
        (
            "| way | pairs | ours | by hand | throughput over it, 95 % | above "
            f"{LEAST} | by CPU seconds, 95 % |"
        ),
        "|---|---:|---:|---:|---|---|---|",
    ]
    for name, pairs in found.items():
        ours_s, plain_s = (
            median(times[WALL] for times in side) for side in zip(*pairs, strict=True)
        )
        wall, cpu = _ratios(pairs, WALL), _ratios(pairs, CPU)
        low, _ = median_interval(wall)
        lines.append(
            f"| {name} | {len(pairs)} | {ours_s:.3f} s | {plain_s:.3f} s | "
            f"{_words(wall)} | {'yes' if low > LEAST else 'no'} | {_words(cpu)} |"
        )
    return "\n".join(lines)


def _ratios(pairs: Pairs, clock: int) -> list[float]:
    return [plain[clock] / ours[clock] for ours, plain in pairs]


def _words(ratios: list[float]) -> str:
    low, high = median_interval(ratios)
    return f"{median(ratios):.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = measuring(__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--model", default=str(MODELS / "gpt.json"))
    wish = parser.parse_args()
    found = measured(wish)
    about = {
        "command": f"python -m benchmarks.overhead {shlex.join(sys.argv[1:])}",
        "device": f"{cpu_name()}, torch {torch.__version__}",
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
    }
    text = f"`{about['command']}`: {about['device']}, {about['date']}\n\n{table(found)}"
    print(text)
    if wish.page is not None:
        put(wish.page, "overhead", f"\n{text}\n\n")
    if wish.keep is not None:
        wish.keep.write_text(json.dumps({**about, "pairs_s": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
