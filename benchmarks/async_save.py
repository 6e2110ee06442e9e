"""What a checkpoint costs training, beside it and in its way, in pairs.

    python -m benchmarks.async_save [--pairs 12] [--keep FOLDER]

Two ranks train the same steps over and over: without a save, with one that a thread
writes, with one that training waits for. A save's cost is what its window takes longer
than the one beside it without; at one save a minute its share of the throughput is that
over 60 s. Of all pairs the median, and its interval at 95 % by the sign test. The same
of CPU seconds says what the ranks computed more: on a machine whose cores are all
training, a save can cost no less. How long training stands still is timed by itself.
Windows are so long that a save has ended in them.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist

from benchmarks.intervals import median_interval
from benchmarks.pages import measuring
from costmodel.layout.strategy import Uniform, spell_out
from profiles.files import decode, read_json, write_text
from profiles.measure.machine import cpu_name
from profiles.models.catalog import model
from profiles.models.job import Job
from runtime.checkpoint.directory import Retention
from runtime.checkpoint.saver import Saver
from runtime.data.sources import source
from runtime.launch.launcher import Program, launch
from runtime.launch.processes import process_group
from runtime.optim.optimizer import Settings
from runtime.train.build import Setup
from runtime.train.trainer import Trainer

RANKS, WARM_UP, MINUTE_S, MOST = 2, 3, 60.0, 0.03
NONE, BESIDE, IN_THE_WAY = "none", "beside", "in the way"
KINDS = (NONE, BESIDE, IN_THE_WAY)
FP32 = Uniform(precision="fp32")
LAYOUTS = {
    "dp2": replace(FP32, dp=2, zero=0, micro_batch=2),
    "zero3": replace(FP32, dp=2, zero=3, zero_group=2, micro_batch=2),
    "pp2": replace(FP32, pp=2, micro_batch=1),
}
BATCH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What every rank is told."""

    model: str
    layout: str
    pairs: int
    steps: int  # of a window
    folder: str  # of the checkpoints
    result: str


def trainer_of(asked: Request) -> Trainer:
    known = model(asked.model)
    job = Job(
        model=known.name, spec=known.spec, seq_len=known.seq_len, global_batch=BATCH
    )
    return Trainer(
        job,
        spell_out(LAYOUTS[asked.layout], job.graph, BATCH),
        source("synthetic", vocab=job.spec.vocab, seq_len=job.seq_len, seed=0),
        settings=Settings(),
        setup=Setup(seed=0, device=torch.device("cpu")),
    )


class Windows:
    """Windows of steps, timed; a checkpoint begins with one."""

    def __init__(self, asked: Request) -> None:
        self.asked, self.trainer, self.number = asked, trainer_of(asked), 0
        keep = Retention(newest=1)
        places = {
            kind: Saver(
                folder=Path(asked.folder, kind.replace(" ", "-")),
                keep=keep,
                say=print,
                background=kind == BESIDE,
            )
            for kind in (BESIDE, IN_THE_WAY)
        }
        self.savers = places
        self.written_s: list[float] = []
        self.stopped_s: dict[str, list[float]] = {kind: [] for kind in places}

    def timed(self, kind: str) -> tuple[float, float]:
        """Seconds on the wall and of this rank's CPU; the thread's is in both."""
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        saver = self.savers.get(kind)
        if saver is not None:
            parts = [held.module for held in self.trainer.stages]
            meta = {"job": "benchmark"}
            saver.save(
                step=self.number + 1,
                parts=parts,
                optimizer=self.trainer.optimizer,
                meta=meta,
            )
            self.stopped_s[kind].append(time.perf_counter() - wall)
        ended = None
        for _ in range(self.asked.steps):
            self.trainer.step(self.number)
            self.number += 1
            if saver is not None and ended is None and saver.idle:
                ended = time.perf_counter() - wall
        found = time.perf_counter() - wall, time.process_time() - cpu
        if kind == BESIDE:
            assert saver is not None
            assert ended is not None, "give windows of more --steps"
            assert saver.failure is None, saver.failure
            self.written_s.append(ended)
        return found


def work(request: Path) -> None:
    """One rank."""
    asked = decode(read_json(request, what="the request"), Request, what="request")
    with process_group("cpu", timeout_s=600, threads=1) as worker:
        windows = Windows(asked)
        for number in range(WARM_UP):
            windows.trainer.step(number)
        windows.timed(BESIDE)  # its copies get their memory
        rounds = []
        for number in range(asked.pairs):
            order = KINDS if number % 2 else tuple(reversed(KINDS))
            seen = {kind: windows.timed(kind) for kind in order}
            everyone: list[Any] = [None] * RANKS
            dist.all_gather_object(everyone, seen)
            rounds.append({kind: _of_ranks(everyone, kind) for kind in KINDS})
        if worker.rank == 0:
            found = {
                "rounds": rounds,
                "written_s": windows.written_s,
                "stopped_s": windows.stopped_s,
            }
            write_text(Path(asked.result), json.dumps(found))


def _of_ranks(everyone: list[dict[str, tuple[float, float]]], kind: str) -> list[float]:
    """The slowest rank's seconds, and the CPU seconds of all."""
    wall, cpu = zip(*(one[kind] for one in everyone), strict=True)
    return [max(wall), sum(cpu)]


def measured(wish: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="meshwright-") as scratch:
        asked, result = Path(scratch, "request.json"), Path(scratch, "result.json")
        request = Request(
            model=wish.model,
            layout=wish.layout,
            pairs=wish.pairs,
            steps=wish.steps,
            folder=scratch,
            result=str(result),
        )
        write_text(asked, json.dumps(asdict(request)))
        given = ["--worker", str(asked)]
        launch(Program(arguments=given, module="benchmarks.async_save"), nproc=RANKS)
        found = read_json(result, what="the pairs")
    assert isinstance(found, dict)
    return found


def table(found: dict[str, Any]) -> str:
    """One row a way to save, as Markdown."""
    rounds = found["rounds"]
    plain = median(one[NONE][0] for one in rounds)
    written = median(found["written_s"])
    said = (
        f"A window without a save takes {plain:.2f} s; a save beside training is on "
        f"disk {written:.2f} s after it began."
    )
    head = (
        "| save | training stands still | s longer, 95 % | share at one a minute, 95 % "
        "| CPU s more, 95 % | their share at one a minute |"
    )
    lines = [said, "", head, "|---|---|---|---|---|---|"]
    for kind in (BESIDE, IN_THE_WAY):
        wall, cpu = (
            [one[kind][clock] - one[NONE][clock] for one in rounds] for clock in (0, 1)
        )
        share = [100 * one / MINUTE_S for one in wall]
        of_cpus = [100 * one / MINUTE_S / RANKS for one in cpu]
        lines.append(
            f"| {kind} | {median(found['stopped_s'][kind]):.2f} s | {_words(wall)} | "
            f"{_words(share, ' %')} | {_words(cpu)} | {_words(of_cpus, ' %')} |"
        )
    return "\n".join(lines)


def _words(values: list[float], unit: str = "") -> str:
    low, high = median_interval(values)
    return f"{median(values):.2f}{unit} ({low:.2f} to {high:.2f})"


FEWEST: Final = 6  # pairs


def main() -> None:
    parser = measuring(__doc__)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--model", default="gpt-mini")
    parser.add_argument("--layout", default="dp2", choices=LAYOUTS)
    wish = parser.parse_args()
    if wish.worker is not None:
        work(wish.worker)
        return
    if wish.pairs < FEWEST:
        parser.error(f"--pairs {wish.pairs}: give {FEWEST} or more, for an interval")
    found = measured(wish)
    about = {
        "command": f"python -m benchmarks.async_save {shlex.join(sys.argv[1:])}",
        "device": f"{cpu_name()}, torch {torch.__version__}",
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
    }
    text = f"`{about['command']}`: {about['device']}, {about['date']}\n\n{table(found)}"
    print(text)
    if wish.keep is not None:
        wish.keep.mkdir(parents=True, exist_ok=True)
        (wish.keep / f"{wish.layout}.md").write_text(text + "\n")
        (wish.keep / f"{wish.layout}.json").write_text(
            json.dumps({**about, **found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
