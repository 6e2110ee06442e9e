"""A measurement from question to samples."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from profiles.measure import machine
from profiles.measure.calibration import CALIBRATION
from profiles.measure.cluster import cluster_of
from profiles.measure.facts import cache_bytes
from profiles.measure.gpu_names import device_name
from profiles.measure.noise import Busy, Noise, noise
from profiles.measure.plan import MOST_TOKENS, exchanges, operations
from profiles.measure.processes import run
from profiles.measure.question import Question
from profiles.measure.survey import Result
from profiles.measure.tables import collective_samples, operator_samples
from profiles.measure.tasks import Operation, Request
from profiles.measure.work import arena_bytes, flops, held_bytes
from profiles.samples import Samples
from profiles.units import GFLOPS, PFLOPS, MiB

Progress = Callable[[float, float], None]
QUICK_S, FULL_S = 45.0, 240.0
# Seconds on one core, or on a GPU: larger products are read off the curve of others.
MOST_FLOPS = {"cpu": 400 * GFLOPS, "cuda": PFLOPS}
QUICK_BYTES, FULL_BYTES = 64 * MiB, 256 * MiB  # the largest message
START_S = 120.0  # to start processes that import torch on a busy machine
MOST_REPEATS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The samples, and how quiet the machine was."""

    samples: Samples
    noise: Noise


def measure(
    question: Question, progress: Progress, *, budget_s: float | None = None
) -> Measured:
    """Measure all that *question* needs on this machine, in about *budget_s*.

    Raises RunFailed where a measuring process dies.
    """
    before = Busy.now()
    with TemporaryDirectory(prefix="meshwright-") as folder:
        request = request_of(
            question,
            str(Path(folder) / "meeting"),
            budget_s or (QUICK_S if question.quick else FULL_S),
        )
        results = run(request, progress)
    quiet = noise(
        [wall_s for _, wall_s in results[0].calibrations],
        before,
        Busy.now(),
        sum(result.cpu_s for result in results),
    )
    return Measured(samples=_samples(request, results, quiet), noise=quiet)


def request_of(question: Question, rendezvous: str, budget_s: float) -> Request:
    """What every rank is told; *rendezvous* is a file that they meet at."""
    parts = [
        size for size in range(1, question.ranks + 1) if question.ranks % size == 0
    ]
    found: dict[Operation, None] = {}
    for job in question.jobs:
        found |= dict.fromkeys(
            operations(
                job,
                parts=parts,
                precisions=question.precisions,
                most_tokens=MOST_TOKENS[question.device],
            )
        )
    room = machine.rank_memory_bytes(question.device, question.ranks)
    most_flops = MOST_FLOPS[question.device]
    fitting = tuple(
        one for one in found if held_bytes(one) < room and flops(one) < most_flops
    )
    messages = exchanges(
        question.ranks, most_bytes=QUICK_BYTES if question.quick else FULL_BYTES
    )
    cache = cache_bytes(question.device)
    return Request(
        device=question.device,
        ranks=question.ranks,
        threads=max(machine.cores() // question.ranks, 1),
        operations=fitting,
        exchanges=messages,
        precisions=question.precisions,
        arena_bytes=arena_bytes(
            fitting, messages, cache_bytes=cache, memory_bytes=room
        ),
        cache_bytes=cache,
        rendezvous=rendezvous,
        budget_s=budget_s,
        most_repeats=MOST_REPEATS,
        timeout_s=START_S + 10 * budget_s,
    )


def _calibration_s(results: Sequence[Result]) -> float:
    return median(own_s for result in results for own_s, _ in result.calibrations)


def _samples(request: Request, results: Sequence[Result], quiet: Noise) -> Samples:
    facts = results[0].facts
    on_cpu = request.device == "cpu"
    device = (
        machine.slug(machine.cpu_name()) if on_cpu else device_name(facts["device"])
    )
    fabric = "loopback" if on_cpu else facts["fabric"]
    operators = operator_samples(
        request, results, device=device, software=facts["software"]
    )
    collectives = collective_samples(request, results, fabric=fabric)
    return Samples(
        operators=operators,
        collectives=collectives,
        machine={
            **facts,
            "device": device,
            "host cpu": machine.cpu_name(),
            "cores": str(machine.cores()),
            "memory bytes": f"{machine.memory_bytes('MemTotal'):.0f}",
            "ranks": str(request.ranks),
            "threads": str(request.threads),
            "date": machine.now(),
            "noise": str(quiet),
            CALIBRATION: f"{_calibration_s(results):.6g}",
            "command": shlex.join(["profile", *sys.argv[1:]]),
        },
        cluster=cluster_of(
            request, results, operators, collectives, device=device, fabric=fabric
        ),
    )
