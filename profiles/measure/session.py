"""A measurement from question to samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from profiles.measure import machine
from profiles.measure.drives import QUICK_BYTES as DRIVE_QUICK_BYTES
from profiles.measure.drives import SIZE_BYTES as DRIVE_BYTES
from profiles.measure.drives import DriveRates, drive_rates, slowest
from profiles.measure.local_cluster import cluster_of
from profiles.measure.machine import device_name
from profiles.measure.noise import CALIBRATION, Busy, Noise, noise
from profiles.measure.plan import (
    MOST_TOKENS,
    amid_products,
    exchanges,
    of_units,
    operations,
)
from profiles.measure.processes import run
from profiles.measure.rendezvous import (
    Node,
    described,
    meeting,
    rank_memory_bytes,
    require_alike,
)
from profiles.measure.request import Question
from profiles.measure.survey import Result
from profiles.measure.tables import collective_samples, operator_samples
from profiles.measure.timing import Operation, Request, arena_bytes, flops, held_bytes
from profiles.samples import Samples
from profiles.system import interface
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What the ranks of one node saw."""

    ranks: tuple[Result, ...]


def measure(
    question: Question, progress: Progress, *, budget_s: float | None = None
) -> Measured:
    """Measure all that *question* needs on this machine, in about *budget_s*.

    Raises RunFailed where a measuring process dies.
    """
    size = DRIVE_QUICK_BYTES if question.quick else DRIVE_BYTES
    drive = drive_rates(question.offload_dir, size)
    before = Busy.now()
    with (
        TemporaryDirectory(prefix="meshwright-") as folder,
        meeting(question.endpoint, question.nodes) as met,
    ):
        nodes = met.share("node", described(question))
        require_alike(nodes)
        request = request_of(
            question,
            str(question.endpoint or Path(folder) / "meeting"),
            budget_s or (QUICK_S if question.quick else FULL_S),
            nodes=nodes,
        )
        own = run(
            request, progress, node=met.node, interface=interface(question.endpoint)
        )
        everyone = met.share("results", Results(ranks=own))
        drives = slowest(met.share("drives", drive))
        quiet = max(met.share("noise", _noise(before, nodes, met.node, everyone)))
    results = [result for one in everyone for result in one.ranks]
    samples = _samples(request, results, quiet, nodes, drives)
    return Measured(samples=samples, noise=quiet)


def _noise(
    before: Busy, nodes: Sequence[Node], node: int, everyone: Sequence[Results]
) -> Noise:
    """Of this machine: what ranks of any node that is part of it did is no noise."""
    here = [one.boot == nodes[node].boot for one in nodes]
    return noise(
        [wall_s for _, wall_s in everyone[node].ranks[0].calibrations],
        before,
        Busy.now(),
        sum(result.cpu_s for one in compress(everyone, here) for result in one.ranks),
    )


def request_of(
    question: Question,
    rendezvous: str,
    budget_s: float,
    *,
    nodes: Sequence[Node] = (),
) -> Request:
    """What every rank is told; *rendezvous* is where they meet, *nodes* who they are
    (if left out, this machine alone)."""
    nodes = nodes or (described(question),)
    ranks = question.ranks * len(nodes)
    parts = [size for size in range(1, ranks + 1) if ranks % size == 0]
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
        if ranks > 1 and question.device == "cpu":
            found |= dict.fromkeys(of_units(job, parts))
    room = rank_memory_bytes(nodes, question.device)
    most_flops = MOST_FLOPS[question.device]
    fitting = tuple(
        one for one in found if held_bytes(one) < room and flops(one) < most_flops
    )
    messages = exchanges(
        question.ranks,
        nodes=len(nodes),
        most_bytes=QUICK_BYTES if question.quick else FULL_BYTES,
        alone=question.device != "cpu",  # ranks that share cores are all at work
    )
    if question.device == "cpu":
        messages += tuple(amid_products(messages))
    cache = max(node.cache_bytes for node in nodes)
    cores = min(node.cores for node in nodes)
    return Request(
        device=question.device,
        ranks=ranks,
        nodes=len(nodes),
        threads=max(cores // question.ranks, 1),
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


def _samples(
    request: Request,
    results: Sequence[Result],
    quiet: Noise,
    nodes: Sequence[Node],
    drives: DriveRates,
) -> Samples:
    """The same on every node; of the machine, what node 0 says of itself."""
    facts = results[0].facts
    on_cpu = request.device == "cpu"
    device = (
        machine.slug(machine.cpu_name()) if on_cpu else device_name(facts["device"])
    )
    fabric = "loopback" if on_cpu else facts["fabric"]
    network = machine.network(request.device)
    operators = operator_samples(
        request, results, device=device, software=facts["software"]
    )
    collectives = collective_samples(request, results, fabric=fabric, network=network)
    return Samples(
        operators=operators,
        collectives=collectives,
        machine={
            **facts,
            "device": device,
            **nodes[0].facts,
            "ranks": str(request.ranks),
            "threads": str(request.threads),
            "noise": str(quiet),
            CALIBRATION: f"{_calibration_s(results):.6g}",
            **({"nodes": str(request.nodes)} if request.nodes > 1 else {}),
        },
        cluster=cluster_of(
            request,
            results,
            operators,
            collectives,
            device=device,
            links=(fabric, network),
            memory_bytes=rank_memory_bytes(nodes, request.device),
            drives=drives,
        ),
    )
