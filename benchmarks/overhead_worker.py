"""The ranks that hold both sides: layouts of ours, and the same by hand.

`python -m benchmarks.overhead_worker request.json`, under the launcher. Both sides of a
way train the same model on the same batches from the same first values, step by step in
turn, which goes first alternating; their losses must agree before any is timed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _world

from benchmarks.plain import CPU, WAYS, OneStep
from costmodel.layout.strategy import Uniform, spell_out
from profiles.files import decode, read_json, write_text
from profiles.models.catalog import model
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec
from runtime.data.sources import Source, source
from runtime.launch.processes import process_group
from runtime.optim.optimizer import Settings
from runtime.train.build import Setup
from runtime.train.trainer import Trainer

SEED, WARM_UP, AGREE = 0, 3, 1e-4
RANKS = 2
Times = tuple[float, float]  # on the wall, and of the ranks' CPUs
FP32 = Uniform(precision="fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The layout of ours, of a global batch, that one way to train corresponds to."""

    choice: Uniform
    splits_batch: bool  # each rank has sequences of its own

    @classmethod
    def of(cls, name: str, batch: int) -> Way:
        each = batch // RANKS
        return {
            "ddp": cls(
                choice=replace(FP32, dp=2, zero=0, micro_batch=each), splits_batch=True
            ),
            "fsdp": cls(
                choice=replace(FP32, dp=2, zero=3, zero_group=2, micro_batch=each),
                splits_batch=True,
            ),
            "tp": cls(
                choice=replace(FP32, tp=2, micro_batch=batch), splits_batch=False
            ),
            "pipeline": cls(
                choice=replace(FP32, pp=2, micro_batch=each // 2), splits_batch=False
            ),
        }[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What every rank is told."""

    model: str
    ways: tuple[str, ...]
    pairs: int
    result: str

    def write(self, path: Path) -> None:
        write_text(path, json.dumps(asdict(self)))


def untied(name: str) -> Job:
    """The model with a head of its own: by hand, no stages share a parameter."""
    known = model(name)
    assert isinstance(known.spec, DecoderSpec)
    return Job(
        model=known.name,
        spec=replace(known.spec, tied_embeddings=False),
        seq_len=known.seq_len,
        global_batch=known.global_batch,
    )


def sides(name: str, job: Job) -> tuple[Callable[[int], float], Callable[[int], float]]:
    """Steps of ours and of those by hand; each gives the loss over the global batch."""
    spec = job.spec
    assert isinstance(spec, DecoderSpec)
    way = Way.of(name, job.global_batch)
    data = source("synthetic", vocab=spec.vocab, seq_len=job.seq_len, seed=SEED)
    layout = spell_out(way.choice, job.graph, job.global_batch)
    setup = Setup(seed=SEED, device=CPU)
    trainer = Trainer(job, layout, data, settings=Settings(), setup=setup)
    by_hand = WAYS[name](job, SEED)

    def plain(number: int) -> float:
        return _loss(by_hand, *_batch(data, job, number, splits=way.splits_batch))

    return lambda number: trainer.step(number).loss, plain


def _batch(
    data: Source, job: Job, number: int, *, splits: bool
) -> tuple[Tensor, Tensor]:
    mine = job.global_batch // (RANKS if splits else 1)
    first = number * job.global_batch + (mine * dist.get_rank() if splits else 0)
    sequences = data.sequences(first, mine)
    return sequences[:, :-1], sequences[:, 1:]


def _loss(step: OneStep, tokens: Tensor, targets: Tensor) -> float:
    """The mean over the ranks that saw one: what a loop would log."""
    own = step(tokens, targets)
    seen = torch.tensor([own or 0.0, float(own is not None)])
    dist.all_reduce(seen)
    return float(seen[0] / seen[1])


def timed(step: Callable[[int], float], number: int) -> Times:
    """A step's seconds from all ranks ready to all ranks done, and those that the
    ranks' threads computed in it, together."""
    dist.barrier()
    began, began_cpu = time.perf_counter(), time.process_time()
    step(number)
    dist.barrier()
    cpu_s = torch.tensor(time.process_time() - began_cpu, dtype=torch.float64)
    wall_s = time.perf_counter() - began
    dist.all_reduce(cpu_s)
    return wall_s, float(cpu_s)


def pairs_of(name: str, job: Job, count: int) -> list[tuple[Times, Times]]:
    """Times of ours and of those by hand, pair by pair.

    Raises RuntimeError where they do not train alike.
    """
    ours, plain = sides(name, job)
    for number in range(WARM_UP):
        loss, by_hand = ours(number), plain(number)
        if abs(loss - by_hand) > AGREE:
            raise RuntimeError(
                f"{name}: step {number} has loss {loss} with ours, {by_hand} by hand"
            )
    found = []
    for number in range(WARM_UP, WARM_UP + count):
        if number % 2:
            one, other = timed(ours, number), timed(plain, number)
        else:
            other, one = timed(plain, number), timed(ours, number)
        found.append((one, other))
    return found


def main(path: str) -> None:
    """Carry the request at *path* out in this process."""
    request = decode(read_json(Path(path), what="request"), Request, what="request")
    with process_group(timeout_s=600, threads=1) as worker:
        job, found = untied(request.model), {}
        for name in request.ways:
            found[name] = pairs_of(name, job, request.pairs)
            gc.collect()
            leave_groups()
        if worker.rank == 0:
            write_text(Path(request.result), json.dumps(found))


def leave_groups() -> None:
    """Leave every process group but the whole, for a process that trains one layout
    after another.

    Each of gloo's keeps three threads that wake a hundred times a second: sixty groups
    take a twentieth of a core.
    """
    for group in list(_world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # as `runtime.launch.worker` does, and for its reason
