"""`Question`: what to measure, with every default resolved and checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from profiles.errors import Contradiction, InvalidQuestion, Unsupported
from profiles.measure import machine
from profiles.measure.drives import SIZE_BYTES
from profiles.measure.plan import default_jobs
from profiles.measure.timing import KINDS
from profiles.models import Job, Model
from profiles.models import model as known_model
from profiles.system import Endpoint, default_folder, meeting_point, require_room
from profiles.units import GiB, format_bytes

PRECISIONS = {"cpu": ("fp32",), "cuda": ("bf16", "fp32")}
FORMATS = {
    "cpu": ("fp32", "bf16", "fp8"),
    "cuda": ("fp32", "tf32", "bf16", "fp16", "fp8"),
}
MOST_RANKS = 4  # by default; more may be asked for
RANK_BYTES = GiB  # PyTorch itself, and the smallest operands that no cache holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """As the command line says it; None (or empty) where it does not."""

    device: str | None = None
    ranks: int | None = None
    quick: bool = False
    model: str | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    precisions: tuple[str, ...] = ()
    nodes: int = 1
    rdzv_endpoint: str | None = None
    offload_dir: Path | None = None


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


def resolved(wish: Wish) -> Question:
    """The question of *wish*.

    Raises InvalidQuestion where this machine has no such device, number format or
    room for so many ranks, and UnknownName, InvalidSpec or Unsupported for the model.
    """
    jobs = _jobs(wish)
    if wish.offload_dir is not None:
        require_room(wish.offload_dir, SIZE_BYTES, "measuring the drive")
    endpoint = meeting_point(wish.nodes, wish.rdzv_endpoint)
    gpus = machine.gpus() if wish.device != "cpu" else ()
    device = wish.device or ("cuda" if gpus else "cpu")
    if device == "cuda" and not gpus:
        raise InvalidQuestion(
            "--device cuda: PyTorch sees no GPU on this machine; use --device cpu"
        )
    ranks = wish.ranks or len(gpus) or min(machine.cores(), MOST_RANKS)
    _require_room(device, ranks, len(gpus))
    precisions = tuple(dict.fromkeys(wish.precisions)) or PRECISIONS[device]
    for precision in precisions:
        _require_format(device, precision)
    return Question(
        device=device,
        ranks=ranks,
        precisions=precisions,
        jobs=jobs or default_jobs(device),
        quick=wish.quick,
        nodes=wish.nodes,
        endpoint=endpoint,
        offload_dir=wish.offload_dir or default_folder(),
    )


def _jobs(wish: Wish) -> tuple[Job, ...]:
    if wish.model is None:
        for value, flag in (
            (wish.seq_len, "seq-len"),
            (wish.global_batch, "global-batch"),
        ):
            if value is not None:
                raise Contradiction(f"--{flag} is of a model; give --model too")
        return ()
    found = known_model(wish.model)
    job = _job(
        found, wish.seq_len or found.seq_len, wish.global_batch or found.global_batch
    )
    _require_kinds(job)
    return (job,)


def _job(found: Model, seq_len: int, global_batch: int) -> Job:
    return Job(
        model=found.name, spec=found.spec, seq_len=seq_len, global_batch=global_batch
    )


def _require_kinds(job: Job) -> None:
    for block in job.graph.distinct():
        for operator in block.operators:
            if operator.function not in KINDS:
                raise Unsupported(
                    f"{job.model} has operators of kind {operator.function!r}, which "
                    f"are not measured; {', '.join(KINDS)} are"
                )


def _require_room(device: str, ranks: int, gpus: int) -> None:
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


def _require_format(device: str, precision: str) -> None:
    formats = FORMATS[device]
    if device == "cuda":
        formats = tuple(one for one in formats if machine.multiplies(one, device))
    if precision not in formats:
        raise Unsupported(
            f"--precision {precision}: this device does not multiply in it; it has "
            f"{', '.join(formats)}"
        )
