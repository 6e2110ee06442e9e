"""The ranks of a closed loop: one set of processes takes all layouts in turn.

`python -m benchmarks.loop_worker request.json`, under the launcher. Every layout is
visited in every round, every other round from the last to the first, so that a machine
that slows down meets all alike. A visit builds it anew, since the threads of others'
process groups would take time from it, warms up, sees the peak of memory and is then
timed; the first also sees where the step's time goes.

A virtual machine's neighbours take up to half of its speed for minutes. A fixed product
is timed before and after each visit: as long as it takes much longer, or less, than in
the profile nothing is begun, and a visit that ended so is made again, while patience
lasts. What is left out stays in the result, as `disturbed_s`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from costmodel.layout_reader import parse_file
from costmodel.stored import job_of
from profiles.documents import decode, read_json, write_text
from profiles.measure.calibration import calibration_s
from runtime.data.source import source
from runtime.memory import alive_bytes
from runtime.modules.decoder import decoder_of
from runtime.observe import WARM_UP_STEPS
from runtime.optimizer import Settings
from runtime.processes import Worker, leave_groups, process_group
from runtime.told import told
from runtime.trainer import Trainer
from runtime.watch import Watch, everyone

SEED = 0
ALIKE = 1.15  # a fixed product's time over that in the profile, or the other way
PAUSE_S = 1.0


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


class Visited:
    """One layout on this rank; grows with every visit."""

    def __init__(self, document: dict[str, Any], device: torch.device) -> None:
        file = parse_file(document)
        self.job, self.layout, self.device = job_of(file), file.layout, device
        self.rounds_s: list[list[float]] = []
        self.disturbed_s: list[list[float]] = []
        self.losses: list[float] = []
        self.peak_bytes: int | None = None
        self.seen: dict[str, Any] = {}
        self._steps = 0

    def visit(self, steps: int) -> None:
        """Warm up, then time *steps* of them."""
        before = self._alive()
        watch = self._built()
        for since in range(WARM_UP_STEPS):
            self._step(watch, since)
        # What gloo's threads free goes unseen now and then (`runtime.memory`): of
        # visits that are alike the least counts.
        peak_bytes = watch.peak.allocated - before
        self.peak_bytes = min(self.peak_bytes or peak_bytes, peak_bytes)
        self.rounds_s.append([self._step(watch, WARM_UP_STEPS) for _ in range(steps)])
        if len(self.rounds_s) == 1:
            self.seen = self._told(watch)
        del watch
        gc.collect()
        leave_groups()

    def disturbed(self) -> None:
        """The last visit does not count."""
        self.disturbed_s.append(self.rounds_s.pop())

    def _built(self) -> Watch:
        spec = decoder_of(self.job)
        data = source(
            "synthetic", vocab=spec.vocab, seq_len=self.job.seq_len, seed=SEED
        )
        trainer = Trainer(
            self.job,
            self.layout,
            data,
            settings=Settings(name=self.job.optimizer),
            seed=SEED,
            device=self.device,
        )
        return Watch(trainer, record=False, untimed=WARM_UP_STEPS, trace=None)

    def _alive(self) -> int:
        """Bytes that are there before anything is built."""
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        return alive_bytes()

    def _step(self, watch: Watch, since: int) -> float:
        result = watch.step(self._steps, since=since)
        self._steps += 1
        self.losses.append(result.loss)
        return result.seconds

    def _told(self, watch: Watch) -> dict[str, Any]:
        reports, step_s = everyone(watch.report()), median(self.rounds_s[0])
        return told(reports, self.job, step_s, device=self.device.type)

    def document(self) -> dict[str, Any]:
        """As `execute --json` has it, with the seconds of every round."""
        peaks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(peaks, self.peak_bytes)
        every = [one for seconds in self.rounds_s for one in seconds]
        return {
            "step_time_s": {"median": median(every)},
            "rounds_s": self.rounds_s,
            "disturbed_s": self.disturbed_s,
            "losses": self.losses,
            "peak_allocated_bytes": peaks,
            **{name: self.seen[name] for name in ("parts_s", "exchanges")},
        }


def run(request: Request, worker: Worker) -> None:
    """All rounds; rank 0 writes the result."""
    visited = {
        name: Visited(document, worker.device)
        for name, document in request.layouts.items()
    }
    speeds, patience = [], Patience(request)
    for number in range(request.rounds):
        dist.barrier()
        speeds.append(calibration_s(request.device))
        order = list(visited.items())
        for name, one in order if number % 2 == 0 else reversed(order):
            patience.visit(one)
            if worker.rank == 0:
                seconds = " ".join(f"{step:.3f}" for step in one.rounds_s[-1])
                print(f"round {number + 1}  {name}: {seconds} s", flush=True)
    documents = {name: one.document() for name, one in visited.items()}
    if worker.rank == 0:
        found = {"calibrations_s": speeds, "runs": documents}
        write_text(Path(request.result), json.dumps(found))


class Patience:
    """Visits while the machine is as fast as it was for the profile, as long as the
    seconds for waiting and for visits that are made again last."""

    def __init__(self, request: Request) -> None:
        self.request, self.left_s = request, request.patience_s

    def visit(self, one: Visited) -> None:
        """Visit *one* until that was undisturbed."""
        while True:
            self._wait()
            started_s = time.monotonic()
            one.visit(self.request.steps)
            if not self._unlike():
                return
            one.disturbed()
            self.left_s -= time.monotonic() - started_s

    def _wait(self) -> None:
        while self._unlike():
            time.sleep(PAUSE_S)
            self.left_s -= PAUSE_S

    def _unlike(self) -> bool:
        """Whether any rank is slower or faster than the profile's were, and there is
        patience left: as the first of them sees it."""
        told: list[Any] = [None] * dist.get_world_size()
        pace = calibration_s(self.request.device) / self.request.calm_s
        dist.all_gather_object(told, (pace, self.left_s > 0))
        unlike = max(max(pace, 1 / pace) for pace, _ in told) > ALIKE
        return unlike and bool(told[0][1])


def main(path: str) -> None:
    """Carry the request at *path* out in this process."""
    document = read_json(Path(path), what="the loop's request")
    request = decode(document, Request, what="request")
    with process_group(
        request.device, timeout_s=600, threads=request.threads
    ) as worker:
        run(request, worker)


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # as `runtime.worker` does, and for its reason
