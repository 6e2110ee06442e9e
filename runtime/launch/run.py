"""A run from the outside: what is asked, checked, predicted, launched and compared."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from costmodel.layout import Layout
from costmodel.machine import shares_cores
from costmodel.simulation import (
    LayoutFile,
    file_document,
    job_of,
    read_layout_file,
    trace_named,
)
from costmodel.simulation import fingerprint as job_fingerprint
from costmodel.support import require_supported
from profiles.errors import Contradiction, MeshwrightError, RunFailed, Unsupported
from profiles.files import decode, read_json, shown, write_text
from profiles.models import DecoderSpec, Job, ModuleSpec
from profiles.samples import require_writable
from profiles.system import meeting_point, route_to
from runtime.checkpoint import (
    Found,
    Retention,
    forget_partial,
    latest,
    require_fresh,
    resumable,
    salvaged,
)
from runtime.data import Source, absolute, fingerprint, source
from runtime.launch.attempts import Attempts
from runtime.launch.launcher import Machines, Program, launch, require_startable
from runtime.launch.replan import Layouts
from runtime.launch.rescue import GRACE_S
from runtime.models import decoder_of, require_multiplied
from runtime.observe import Prediction, predict, require_journals, untimed_steps
from runtime.observe import samples as sampling
from runtime.offload import require_drive
from runtime.train import (
    Options,
    RunOptions,
    compresses,
    require_allowed,
    require_compilable,
    require_compressible,
    require_rematerializable,
    samples,
)
from runtime.weights import exported


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Options):
    """What `execute` asks its worker processes to do, as a file between them: `layout`
    is a layout file's document; paths are absolute."""

    layout: dict[str, Any]
    optimizer: str = "adamw"
    device: str  # cpu or cuda
    threads: int
    result: str
    checkpoint_dir: str | None = None
    elastic: bool = False  # go on from the newest checkpoint, if there is one
    history: str | None = None
    observe: bool = False  # listen to more steps, for samples of them
    offload_dir: str | None = None  # of a drive; None: that of temporary files
    damaged: tuple[str, ...] = ()  # checkpoints that it has said are

    def write(self, path: Path) -> None:
        """Write it for the workers."""
        write_text(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Request:
        """Read what `write` wrote; raises InvalidFile."""
        return decode(read_json(path, what="the run's request"), cls, what="request")


def question(request: Request, data: str) -> dict[str, Any]:
    """What must be the same on every machine, by what a user calls it; *data* is the
    fingerprint of what it reads."""
    training, folder = request.training, request.checkpoint_dir
    settings = asdict(request.settings(request.optimizer))
    newest = None if folder is None else latest(Path(folder))
    whole = ("job", "gpus", "layout")
    return {
        "the layout file": _digest({name: request.layout[name] for name in whole}),
        "--device": request.device,
        "--seed": request.seed,
        "what --data begins with": data,
        "--steps": request.steps,
        **{f"the optimizer's {k}": v for k, v in settings.items()},
        "--lr-schedule": training.lr_schedule,
        "--warmup-steps": training.warmup_steps,
        "--decay-steps": training.decay_steps,
        "--min-lr": training.min_lr,
        "--stale-gradients": training.stale_gradients,
        "--anneal-steps": training.anneal_steps,
        "an --eval-data": training.eval_data is not None,
        "--eval-every": training.eval_every,
        "--eval-batches": training.eval_batches,
        "a --trace": training.trace is not None,
        "a --checkpoint-dir": folder is not None,
        "--checkpoint-every": request.checkpoint_every,
        "--timeout": request.timeout_s,
        "--on-nan": request.on_nan,
        "--async-save": request.async_save,
        "a --weights": request.weights is not None,
        "a --save-weights": request.save_weights is not None,
        "--resume": request.resume,
        "--elastic": request.elastic,
        "the newest checkpoint": None if newest is None else newest.name,
        "--observe": request.observe,
        "--record": request.record,
        "--compile": request.compiled,
        "PyTorch's version": str(torch.__version__),
    }


def require_agreed(own: Mapping[str, Any]) -> None:
    """Raise RunFailed where ranks were asked for unlike things; all call it at once.

    Each machine has its own command line, and ranks that read other data, or start from
    another seed or checkpoint, would train on to no model.

    Ranks of one machine have one request, so there is nothing to ask.
    """
    ranks = dist.get_world_size()
    if int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) == ranks:
        return
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, dict(own))
    first = everyone[0]
    for rank, other in enumerate(everyone):
        unlike = [name for name in first if other.get(name) != first[name]]
        if unlike:
            name = unlike[0]
            raise RunFailed(
                f"rank {rank}'s machine got different options from rank 0's: "
                f"{name} is {shown(other.get(name))} there and {shown(first[name])} "
                "here; give every machine the same command and the same files"
            )


def _digest(value: Any) -> str:
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that may start: everything that can be checked without it is checked."""

    options: RunOptions
    file: LayoutFile
    job: Job
    device: str
    data: Source
    prediction: Prediction
    remarks: tuple[str, ...] = ()  # on the drive, and on what it goes on from
    limits: tuple[str, ...] = ()  # of what the comparison says
    layouts: Layouts  # for other numbers of machines
    damaged: tuple[str, ...] = ()  # checkpoints that remarks say are

    @property
    def layout(self) -> Layout:
        return self.file.layout

    @property
    def local_ranks(self) -> int:
        return self.layout.gpus // self.options.nnodes

    @property
    def warnings(self) -> tuple[str, ...]:
        return (*self.remarks, *self.limits, *self.prediction.warnings)

    def execute(self) -> dict[str, Any]:
        """Launch it, wait for it; what `execute --json` prints.

        Raises RunFailed where a worker died.
        """
        options = self.options
        least, most = options.machines
        with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
            attempts = Attempts(
                folder=Path(folder),
                options=options,
                planned=self.layouts,
                ask=self._request,
            )
            try:
                launch(
                    self._program(attempts.asked),
                    nproc=self.local_ranks,
                    machines=Machines(
                        least=least, most=most, endpoint=options.rdzv_endpoint
                    ),
                    max_restarts=options.restarts,
                    device=self.device,
                    output=sys.stdout if options.progress else sys.stderr,
                    prepare=attempts.prepare,
                )
            finally:  # no worker is left that could be writing one
                self._tidy()
            seen = attempts.seen()
        last = attempts.file
        prediction = self.prediction
        if seen and last is not self.file:
            prediction = predict(last, self.job, options.profiles)
        whole = "steps" in seen  # of rank 0
        document = {**seen, **prediction.against(seen if whole else {})}
        if whole:
            document["layout_file"] = file_document(last)
        if options.observe is not None:
            document["observed"] = sampling.add(options.observe, document)
        return document

    def _tidy(self) -> None:
        """Leave whole checkpoints alone."""
        folder = self.options.checkpoint_dir
        if folder is None or self.options.elastic is not None:
            return  # other machines go on writing
        forget_partial(folder)
        if self.options.nnodes > 1:
            return  # another machine's workers may still write
        keep = Retention(newest=self.options.keep, every=self.options.keep_every)
        with suppress(MeshwrightError, OSError):
            salvaged(folder, {"job": job_fingerprint(self.job)}, keep)

    def _program(self, asked: Path) -> Program:
        """The worker; one that saves what it holds has time to."""
        given = [str(asked)]
        if self.options.recovery == "replica":
            return Program(arguments=given, grace_s=GRACE_S)
        return Program(arguments=given)

    def _request(self, file: LayoutFile, result: Path, history: Path) -> Request:
        """What workers are asked to do with the layout of *file*."""
        options = self.options
        folder, drive = options.checkpoint_dir, options.offload_dir
        same = {one.name: getattr(options, one.name) for one in fields(Options)}
        same |= {
            "data": absolute(options.data),
            "training": options.training.resolved(),
            "weights": options.weights and absolute(options.weights),
            "save_weights": options.save_weights and absolute(options.save_weights),
        }
        return Request(
            layout=file_document(file),
            optimizer=self.job.optimizer,
            device=self.device,
            threads=threads(self.local_ranks),
            result=str(result),
            checkpoint_dir=None if folder is None else str(folder.absolute()),
            elastic=options.elastic is not None,
            history=str(history),
            observe=options.observe is not None,
            offload_dir=None if drive is None else str(drive.absolute()),
            damaged=self.damaged,
            **same,
        )


def prepare(options: RunOptions) -> Run:
    """Check everything; raises the errors of the tree that say what is wrong."""
    file = read_layout_file(options.layout)
    trace_named(options.model, file)
    job, layout = job_of(file), file.layout
    require_supported(layout, job)
    priced = file.origin.options.compress_gradients
    require_allowed(options, layout, job.optimizer, priced)
    device = _device(options.device, layout)
    if layout.gpus % options.nnodes:
        raise Contradiction(
            f"the layout's {layout.gpus} ranks do not spread over --nnodes "
            f"{options.nnodes}; choose a divisor"
        )
    require_startable(layout.gpus // options.nnodes, device=device)
    endpoint = meeting_point(options.machines[1], options.rdzv_endpoint)
    if endpoint is not None:
        route_to(endpoint)
    found = _require_checkpoints(options, job)
    done = 0 if found is None else found.step
    ranks = layout.gpus // options.nnodes
    remarks = require_drive(job, layout, options.offload_dir, local_ranks=ranks)
    _require_observable(options, device, layout)
    _require_watched(options, done)
    _require_training(options, job, layout, done)
    _require_copied(options, device, layout)
    exported(options.weights, options.save_weights, job)
    if options.compiled:
        require_compilable(layout, job, device)
    prediction = predict(file, job, options.profiles)
    data = _source(options, job, options.data)
    return Run(
        options=options,
        file=file,
        job=job,
        device=device,
        data=data,
        prediction=prediction,
        remarks=(*remarks, *_unlike(options, data, found)),
        limits=tuple(_limits(options, job, prediction, device, done)),
        layouts=_layouts(options, file),
        damaged=() if found is None else found.damaged,
    )


def _layouts(options: RunOptions, file: LayoutFile) -> Layouts:
    """What may be needed of them; raises Contradiction for machines that do not fit
    the file, RunFailed where none is for the fewest."""
    found = Layouts(file)
    if options.elastic is None:
        return found
    least, most = options.machines
    if not least <= options.nnodes <= most:
        raise Contradiction(
            f"--elastic {least}:{most} is not about --nnodes {options.nnodes}, the "
            "machines of the layout file; choose MIN <= --nnodes <= MAX"
        )
    if options.checkpoint_dir is None or not options.checkpoint_every:
        raise Contradiction(
            "--elastic goes on from checkpoints in a folder that all machines share; "
            "give --checkpoint-dir DIR and --checkpoint-every N"
        )
    found.of(least * (file.gpus // options.nnodes))
    return found


def threads(local_ranks: int) -> int:
    """Threads of one rank: the cores, shared out."""
    return max(1, len(os.sched_getaffinity(0)) // local_ranks)


def _device(asked: str | None, layout: Layout) -> str:
    import torch

    found = torch.cuda.is_available()
    if asked == "cuda" and not found:
        raise Unsupported(
            "--device cuda: this machine has no CUDA device that torch "
            f"{torch.__version__} can use; leave --device out to train on the CPU"
        )
    device = asked or ("cuda" if found else "cpu")
    require_multiplied(layout.precision_name, device)
    return device


def _require_copied(options: RunOptions, device: str, layout: Layout) -> None:
    """Raise what is wrong with the copies of the state that are asked for."""
    away = layout.offload
    if options.async_save and away.states and away.tier == "nvme":
        raise Unsupported(
            "--async-save copies the state to the host's memory, which this layout "
            "keeps on a drive; leave it out"
        )
    if options.recovery == "replica" and device == "cuda":
        raise Unsupported(
            "--recovery replica needs collectives that end when a peer is lost, as on "
            "the CPU; leave it out: NCCL's do not"
        )
    if options.recovery == "replica" and away.states:
        raise Unsupported(
            "--recovery replica takes updates back, and this layout makes them where "
            "its states are offloaded; leave it out"
        )


def _require_training(options: RunOptions, job: Job, layout: Layout, done: int) -> None:
    """Raise what is wrong with the learning rate, the held-out data or the logs."""
    options.training.require()
    require_journals(options.training, done)
    options.learning_rate()
    require_rematerializable(options, layout)
    require_compressible(options.compress_gradients, job, layout)
    if options.compress_activations and not compresses(layout):
        raise Contradiction(
            f"--compress-activations {options.compress_activations} shares out the "
            "bits that a layout keeps groups of activations in, and this one does not; "
            "make it with --compress-activations 4"
        )
    if options.training.eval_data is not None:
        _source(options, job, options.training.eval_data)


def _source(options: RunOptions, job: Job, data: str) -> Source:
    if isinstance(job.spec, ModuleSpec):
        return samples(data, job.spec, options.seed)
    vocab = decoder_of(job).vocab
    return source(data, vocab=vocab, seq_len=job.seq_len, seed=options.seed)


def _require_observable(options: RunOptions, device: str, layout: Layout) -> None:
    if options.observe is None:
        return
    ranks = threads(layout.gpus // options.nnodes)
    sampling.require_of_here(options.observe, device, ranks)
    require_writable(options.observe)


def _require_watched(options: RunOptions, done: int) -> None:
    """Raise Contradiction where a run ends before the steps that it is to watch."""
    observe, trace = options.observe is not None, options.training.trace is not None
    untimed = untimed_steps(observe=observe, trace=trace)
    for asked, what, fewest in (
        (trace, "--trace traces the steps after the warm-up", untimed + 1),
        (
            observe,
            "--observe instruments steps before the timed ones",
            untimed + 1,
        ),
    ):
        if asked and options.steps - done < fewest:
            raise Contradiction(
                f"{what}: --steps {options.steps} is too few; give {done + fewest} or "
                "more"
            )


def _limits(
    options: RunOptions, job: Job, prediction: Prediction, device: str, done: int
) -> Iterator[str]:
    """What the comparison at the end of a run cannot say, and why."""
    if prediction.on is None:
        return
    priced = prediction.on.device
    if shares_cores(priced) != (device == "cpu"):
        yield (
            f"the layout is priced for {priced.name} and trained on this machine's "
            f"{device}: times and memory of the two are not comparable"
        )
    decoder = job.spec if isinstance(job.spec, DecoderSpec) else None
    if device == "cpu" and decoder and decoder.numerics.attention_dropout:
        yield (
            "attention with dropout stores its scores on a CPU, which is not priced: "
            "expect more seconds and bytes than predicted, or set it to 0"
        )
    least = untimed_steps(observe=options.observe is not None) + 1
    if options.steps - done < least:
        yield (
            "no step is timed: the first ones are instrumented, which is slower; give "
            f"--steps {done + least} or more to compare the step time"
        )


def _unlike(options: RunOptions, data: Source, found: Found | None) -> Iterator[str]:
    """What is to be said of the checkpoint that a run goes on from: newer ones that are
    damaged, and what it reads otherwise than the run before did."""
    if found is None:
        return
    yield from found.passed_over
    stored = found.meta
    seed = stored.get("seed", options.seed)
    if seed != options.seed:
        yield (
            f"the checkpoint is of a run with --seed {seed}, this one has --seed "
            f"{options.seed}: it continues with other data than an uninterrupted "
            "run would"
        )
    elif stored.get("data") not in (None, fingerprint(data)):
        yield (
            f"--data {shown(options.data)} is not what the checkpoint's run read, or "
            "has changed since: it continues with other data"
        )


def _require_checkpoints(options: RunOptions, job: Job) -> Found | None:
    """The checkpoint that the run goes on from."""
    folder = options.checkpoint_dir
    if folder is None:
        if options.asks_to_save:
            raise Contradiction(
                f"{', '.join(options.asks_to_save)} needs --checkpoint-dir DIR"
            )
        return None
    fresh = options.elastic is not None and latest(folder) is None
    if fresh or not (options.resume or options.elastic):
        require_fresh(folder)
        return None
    found = resumable(folder, {"job": job_fingerprint(job)})
    if found.step >= options.steps and options.save_weights is None:
        raise Contradiction(
            f"the newest checkpoint in {shown(folder)} is of step {found.step} and "
            f"--steps is {options.steps}; --steps counts from the beginning: raise it "
            "to go on"
        )
    return found
