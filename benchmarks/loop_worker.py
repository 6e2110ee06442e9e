"""The ranks of a closed loop: one set of processes takes all layouts in turn.

`python -m benchmarks.loop_worker request.json`, under the launcher. Every layout is
visited in every round, every other round from the last to the first, so that a machine
that slows down meets all alike. A visit is a process of its own, as a run is: it builds
the layout, warms up, sees the peak of memory and is then timed; the first also sees
where the step's time goes. In one process PyTorch's caches of sharded tensors would
keep a dozen process groups of layouts before, and each of gloo's has threads that wake
a hundred times a second.

A virtual machine's neighbours take up to half of its speed for minutes. A fixed product
is timed before and after each visit: as long as it takes much longer, or less, than in
the profile nothing is begun, and a visit that ended so is made again, while patience
lasts. What is left out stays in the result, as `disturbed_s`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.forked import forked
from costmodel.simulation.layout_files import job_of
from costmodel.simulation.serialization import parse_file
from profiles.files import decode, read_json, write_text
from profiles.measure.machine import Calibration
from runtime.data.sources import source
from runtime.launch.processes import process_group
from runtime.models.decoder import decoder_of
from runtime.observe.run_summary import (
    WARM_UP_STEPS,
    StepProfiler,
    everyone,
    measured_parts,
)
from runtime.optim.optimizer import Settings
from runtime.trace.peak_memory import alive_bytes
from runtime.train.build import Setup
from runtime.train.trainer import Trainer

SEED = 0
ALIKE = 1.15  # a fixed product's time over that in the profile, or the other way
PAUSE_S = 1.0


def calibration_s(device: str = "cpu", repeats: int = 5) -> float:
    """Seconds of the product in this process now: the fastest of *repeats*.

    By the clock that `profile` times operators with: a lone thread's CPU time.
    """
    import torch

    alone = device == "cpu" and torch.get_num_threads() == 1
    now = time.thread_time if alone else time.perf_counter
    product = Calibration(device)
    seconds = []
    for _ in range(repeats + 1):  # the first one loads code
        started_s = now()
        product.run()
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(now() - started_s)
    return min(seconds[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What every rank is told: layout files' documents by name, and how often."""

    layouts: dict[str, dict[str, Any]]
    device: str
    threads: int
    rounds: int
    steps: int  # timed in a visit
    calm_s: float  # the fixed product's seconds in the profile
    patience_s: float
    result: str

    def write(self, path: Path) -> None:
        write_text(path, json.dumps(asdict(self)))


@dataclass(slots=True)
class Visits:
    """What all visits to one layout saw on this rank, as `execute --json` has it."""

    rounds_s: list[list[float]] = field(default_factory=list)
    disturbed_s: list[list[float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peaks: list[list[int]] = field(default_factory=list)  # by visit and rank
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return len(self.losses)

    def keep(self, visit: Mapping[str, Any]) -> None:
        """One more visit."""
        self.losses += visit["losses"]
        self.peaks.append(visit["peaks"])
        if visit["disturbed"]:
            self.disturbed_s.append(visit["steps_s"])
            return
        self.seen = self.seen or visit["seen"]
        self.rounds_s.append(visit["steps_s"])

    def document(self) -> dict[str, Any]:
        """With the seconds of every round."""
        every = [one for seconds in self.rounds_s for one in seconds]
        return {
            "step_time_s": {"median": median(every)},
            "rounds_s": self.rounds_s,
            "disturbed_s": self.disturbed_s,
            "losses": self.losses,
            # What gloo's threads free goes unseen now and then
            # (`runtime.trace.peak_memory`): of visits that are alike the least counts.
            "peak_allocated_bytes": [
                min(by_rank) for by_rank in zip(*self.peaks, strict=True)
            ],
            **{name: self.seen[name] for name in ("parts_s", "exchanges")},
        }


def visit(
    request: Request, layout: Mapping[str, Any], first_step: int, patience_s: float
) -> dict[str, Any]:
    """Wait until the machine is as in the profile, then train *layout*: steps to warm
    up, and those that are timed. Every rank calls this at once, in a process of its
    own."""
    group = process_group(request.device, timeout_s=600, threads=request.threads)
    with group as worker:
        patience = Patience(request, patience_s)
        product_s = patience.wait()
        began_s, before = time.monotonic(), _alive_bytes(worker.device)
        watch = _built(layout, worker.device)
        results = [
            watch.step(first_step + since, since=min(since, WARM_UP_STEPS))
            for since in range(WARM_UP_STEPS + request.steps)
        ]
        steps_s = [one.seconds for one in results[WARM_UP_STEPS:]]
        job = watch.trainer.job
        return {
            "calibration_s": product_s,
            "steps_s": steps_s,
            "losses": [one.loss for one in results],
            "peaks": _gathered(watch.peak.allocated - before),
            "seen": measured_parts(
                everyone(watch.report()), job, median(steps_s), device=request.device
            ),
            "disturbed": patience.lost(time.monotonic() - began_s),
            "patience_s": patience.left_s,
        }


def _built(layout: Mapping[str, Any], device: torch.device) -> StepProfiler:
    file = parse_file(layout)
    job = job_of(file)
    data = source(
        "synthetic", vocab=decoder_of(job).vocab, seq_len=job.seq_len, seed=SEED
    )
    trainer = Trainer(
        job,
        file.layout,
        data,
        settings=Settings(name=job.optimizer),
        setup=Setup(seed=SEED, device=device),
    )
    return StepProfiler(trainer, record=False, untimed=WARM_UP_STEPS, trace=None)


def _alive_bytes(device: torch.device) -> int:
    """What is there before anything is built."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return alive_bytes()


def _gathered(own: Any) -> list[Any]:
    """*own* of every rank, by rank."""
    measured_parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(measured_parts, own)
    return measured_parts


class Patience:
    """Begins while the machine is as fast as it was for the profile, as long as the
    seconds for waiting and for visits that are made again last."""

    def __init__(self, request: Request, left_s: float) -> None:
        self.request, self.left_s = request, left_s
        self.seen_s = 0.0  # the product's seconds, the last time that it was timed

    def wait(self) -> float:
        """The product's seconds, on this rank, once there is no more to wait for."""
        while self._unlike():
            time.sleep(PAUSE_S)
            self.left_s -= PAUSE_S
        return self.seen_s

    def lost(self, took_s: float) -> bool:
        """Whether a visit of *took_s* ended on another machine, and is to be made
        again."""
        unlike = self._unlike()
        self.left_s -= took_s * unlike
        return unlike

    def _unlike(self) -> bool:
        """Whether any rank is slower or faster than the profile's were, and there is
        patience left: as the first of them sees it."""
        self.seen_s = calibration_s(self.request.device)
        pace = self.seen_s / self.request.calm_s
        measured_parts = _gathered((pace, self.left_s > 0))
        unlike = max(max(pace, 1 / pace) for pace, _ in measured_parts) > ALIKE
        return unlike and bool(measured_parts[0][1])


def run(request: Request, rank: int) -> dict[str, Any]:
    """All rounds; the same decisions on every rank."""
    found = {name: Visits() for name in request.layouts}
    left_s, number = request.patience_s, 0
    speeds: list[float] = []
    for round_number in range(request.rounds):
        order = list(found.items())
        for name, seen in order if round_number % 2 == 0 else reversed(order):
            again = True
            while again:
                asked = partial(
                    visit, request, request.layouts[name], seen.steps, left_s
                )
                visited = forked(asked, number=number)
                number += 1
                seen.keep(visited)
                again, left_s = visited["disturbed"], visited["patience_s"]
                if len(speeds) == round_number:
                    speeds.append(visited["calibration_s"])
            if rank == 0:
                seconds = " ".join(f"{step:.3f}" for step in seen.rounds_s[-1])
                print(f"round {round_number + 1}  {name}: {seconds} s", flush=True)
    documents = {name: one.document() for name, one in found.items()}
    return {"calibrations_s": speeds, "runs": documents}


def main(path: str) -> None:
    """Carry the request at *path* out in this process and those that it starts."""
    document = read_json(Path(path), what="the loop's request")
    request = decode(document, Request, what="request")
    rank = int(os.environ.get("RANK", 0))
    found = run(request, rank)
    if rank == 0:
        write_text(Path(request.result), json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # as `runtime.launch.worker` does, and for its reason
