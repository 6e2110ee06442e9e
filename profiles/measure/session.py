"""A measurement from question to samples.

`Question` is what to measure, with every default resolved and checked; `Node` is what
a machine tells the others that it measures with.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from profiles import load_model
from profiles.errors import Contradiction, InvalidQuestion, Unsupported
from profiles.measure import drives, machine
from profiles.measure.drives import DriveRates, drive_rates, slowest
from profiles.measure.machine import (
    CALIBRATION,
    Busy,
    Noise,
    cache_bytes,
    device_name,
    noise,
)
from profiles.measure.options import MeasureOptions
from profiles.measure.plan import (
    MOST_TOKENS,
    amid_products,
    default_jobs,
    exchanges,
    of_units,
    operations,
)
from profiles.measure.processes import run
from profiles.measure.rendezvous import meeting
from profiles.measure.survey import Result
from profiles.measure.tables import cluster_of, collective_samples, operator_samples
from profiles.measure.timing import (
    KINDS,
    Operation,
    Request,
    arena_bytes,
    flops,
    held_bytes,
)
from profiles.models import Job, ModuleSpec
from profiles.samples import Samples
from profiles.system import (
    Endpoint,
    default_folder,
    interface,
    meeting_point,
    require_room,
)
from profiles.units import GFLOPS, PFLOPS, GiB, MiB, format_bytes

PRECISIONS = {"cpu": ("fp32",), "cuda": ("bf16", "fp32")}
FORMATS = {
    "cpu": ("fp32", "bf16", "fp8"),
    "cuda": ("fp32", "tf32", "bf16", "fp16", "fp8"),
}
MOST_RANKS = 4  # by default; more may be asked for
RANK_BYTES = GiB  # PyTorch itself, and the smallest operands that no cache holds
Progress = Callable[[float, float], None]
QUICK_S, FULL_S = 45.0, 240.0
# Seconds on one core, or on a GPU: larger products are read off the curve of others.
MOST_FLOPS = {"cpu": 400 * GFLOPS, "cuda": PFLOPS}
# Of a rank's memory, for one arena: on a GPU each number format has two, which stay
# beside what an operator makes.
ARENA = {"cpu": 1 / 8, "cuda": 1 / 32}
QUICK_BYTES, FULL_BYTES = 64 * MiB, 256 * MiB  # the largest message
START_S = 120.0  # to start processes that import torch on a busy machine
MOST_REPEATS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Ranks on a device, the precisions, and the jobs whose shapes are measured.

    `ranks` are those of each of the `nodes`; `offload_dir` is on the drive that is
    measured.
    """

    device: str
    ranks: int
    precisions: tuple[str, ...]
    jobs: tuple[Job, ...]
    quick: bool
    nodes: int = 1
    endpoint: Endpoint | None = None
    offload_dir: Path = field(default_factory=default_folder)


def resolved(options: MeasureOptions) -> Question:
    """The question of *options*.

    Raises InvalidQuestion where this machine has no such device, number format or
    room for so many ranks, and UnknownName, InvalidSpec or Unsupported for the model.
    """
    jobs = _jobs(options)
    if options.offload_dir is not None:
        require_room(options.offload_dir, drives.SIZE_BYTES, "measuring the drive")
    endpoint = meeting_point(options.nodes, options.rdzv_endpoint)
    gpus = machine.gpus() if options.device != "cpu" else ()
    device = options.device or ("cuda" if gpus else "cpu")
    if device == "cuda" and not gpus:
        raise InvalidQuestion(
            "--device cuda: PyTorch sees no GPU on this machine; use --device cpu"
        )
    ranks = options.ranks or len(gpus) or min(machine.cores(), MOST_RANKS)
    _require_ranks(device, ranks, len(gpus))
    precisions = tuple(dict.fromkeys(options.precisions)) or PRECISIONS[device]
    formats = [name for name in FORMATS[device] if machine.multiplies(name, device)]
    for precision in precisions:
        if precision not in formats:
            raise Unsupported(
                f"--precision {precision}: this device does not multiply in it; it has "
                f"{', '.join(formats)}"
            )
    return Question(
        device=device,
        ranks=ranks,
        precisions=precisions,
        jobs=jobs or default_jobs(device),
        quick=options.quick,
        nodes=options.nodes,
        endpoint=endpoint,
        offload_dir=options.offload_dir or default_folder(),
    )


def _jobs(options: MeasureOptions) -> tuple[Job, ...]:
    if options.model is None:
        for name in ("seq_len", "global_batch"):
            if getattr(options, name) is not None:
                flag = name.replace("_", "-")
                raise Contradiction(f"--{flag} needs a model; give --model too")
        return ()
    known = load_model(options.model, seq_len=options.seq_len)
    job = known.job(seq_len=options.seq_len, global_batch=options.global_batch)
    if isinstance(job.spec, ModuleSpec):
        return (job,)  # what of it is not measured is priced by its bytes
    for block in job.graph.distinct():
        for operator in block.operators:
            if operator.function not in KINDS:
                raise Unsupported(
                    f"{job.model} has operators of kind {operator.function!r}, which "
                    f"are not measured; {', '.join(KINDS)} are"
                )
    return (job,)


def _require_ranks(device: str, ranks: int, gpus: int) -> None:
    """Raise InvalidQuestion for more ranks than GPUs, or than memory starts."""
    if device == "cuda":
        if ranks > gpus:
            raise InvalidQuestion(
                f"--nproc {ranks}: this machine has {gpus} GPUs, and each rank needs "
                f"one; give --nproc {gpus}, or --device cpu"
            )
        return
    available = machine.memory_bytes()
    most = int(available / RANK_BYTES)
    if ranks > most:
        raise InvalidQuestion(
            f"--nproc {ranks}: this machine has {format_bytes(available)} of memory "
            f"available, and a rank needs {format_bytes(RANK_BYTES)} to start; give "
            f"--nproc {max(most, 1)} or fewer"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine, and what it was asked.

    `boot` is the same for containers and namespaces of one machine, which share its
    memory.
    """

    asked: dict[str, str]
    device: str
    boot: str
    cores: int
    rank_memory_bytes: float
    cache_bytes: float
    facts: dict[str, str]


def described(question: Question) -> Node:
    """This machine."""
    on_cpu = question.device == "cpu"
    name = machine.cpu_name() if on_cpu else machine.gpus()[0]
    return Node(
        asked=_asked(question),
        device=machine.slug(name),
        boot=machine.boot(),
        cores=machine.cores(),
        rank_memory_bytes=machine.rank_memory_bytes(question.device, question.ranks),
        cache_bytes=cache_bytes(question.device),
        facts={
            "host cpu": machine.cpu_name(),
            "cores": str(machine.cores()),
            "memory bytes": f"{machine.memory_bytes('MemTotal'):.0f}",
            "date": machine.now(),
            "command": shlex.join(["profile", *sys.argv[1:]]),
        },
    )


def require_alike(nodes: Sequence[Node]) -> None:
    """Raise Contradiction unless all were asked the same, Unsupported for unlike ones.

    A profile speaks of one kind of device: that is what its samples' keys name.
    """
    first = nodes[0]
    for number, node in enumerate(nodes):
        for name, value in first.asked.items():
            if node.asked.get(name) != value:
                raise Contradiction(
                    f"options differ between machines: {name} is {value} "
                    f"on node 0 and {node.asked.get(name)} on node {number}; give the "
                    "same options on each"
                )
        if node.device != first.device:
            raise Unsupported(
                f"node 0 is {first.device} and node {number} {node.device}: measure "
                "machines of different devices in separate profiles"
            )


def rank_memory_bytes(nodes: Sequence[Node], device: str) -> float:
    """Memory that every rank has, also where nodes are parts of one machine."""
    together = [sum(one.boot == other.boot for other in nodes) for one in nodes]
    shares = together if device == "cpu" else [1] * len(nodes)
    return min(
        node.rank_memory_bytes / share
        for node, share in zip(nodes, shares, strict=True)
    )


def _asked(question: Question) -> dict[str, str]:
    jobs = (f"{job.model} {job.seq_len} {job.global_batch}" for job in question.jobs)
    return {
        "--nnodes": str(question.nodes),
        "--nproc": str(question.ranks),
        "--device": question.device,
        "--precision": " ".join(question.precisions),
        "--quick": str(question.quick),
        "--model (sequence, batch)": ", ".join(jobs),
    }


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
    size = drives.QUICK_BYTES if question.quick else drives.SIZE_BYTES
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
        slow = slowest(met.share("drives", drive))
        quiet = max(met.share("noise", _noise(before, nodes, met.node, everyone)))
    results = [result for one in everyone for result in one.ranks]
    samples = _samples(request, results, quiet, nodes, slow)
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
        arena_bytes=arena_bytes(
            fitting,
            messages,
            cache_bytes=cache,
            most_bytes=room * ARENA[question.device],
        ),
        cache_bytes=cache,
        rendezvous=rendezvous,
        budget_s=budget_s,
        most_repeats=MOST_REPEATS,
        timeout_s=START_S + 10 * budget_s,
    )


def _samples(
    request: Request,
    results: Sequence[Result],
    quiet: Noise,
    nodes: Sequence[Node],
    slow: DriveRates,
) -> Samples:
    """The same on every node; of the machine, what node 0 says of itself."""
    facts = results[0].facts
    calibration_s = median(own_s for one in results for own_s, _ in one.calibrations)
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
            CALIBRATION: f"{calibration_s:.6g}",
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
            drives=slow,
        ),
    )
