"""Made-up samples of a made-up machine, for tests: no clock is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import prod
from zlib import crc32

import numpy as np

from costmodel.machine.assembly import Machine, machine
from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import local_shape
from profiles.hardware.clusters import Cluster, Device, Island, Level
from profiles.models.catalog import model
from profiles.models.graph import Kind
from profiles.models.job import Job
from profiles.samples.operator_keys import BESIDE, GAPS, SOON, UNIT_KINDS
from profiles.samples.table import LOCAL, CollectiveKey, OperatorKey, Sample, Samples
from tests.support.toy import figure

DEVICE, SOFTWARE, FABRIC = "bench-cpu", "torch-2.13.0+cpu/1-threads", "loopback"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
SIZES = tuple(4**power for power in range(5, 14))
AMID_BYTES = 4**11  # the largest that are measured soon after another, and beside


def job(name: str = "gpt-tiny", global_batch: int = 8) -> Job:
    found = model(name)
    return Job(
        model=name,
        spec=found.spec,
        seq_len=found.seq_len,
        global_batch=global_batch,
    )


def local(ranks: int = 4, architecture: str = "cpu") -> Cluster:
    """One node of *ranks* ranks."""
    memory, nothing = figure(8, "GiB"), figure(0, "GiB")
    device = Device(
        name=DEVICE,
        architecture=architecture,
        memory=memory,
        usable_memory=memory,
        memory_bandwidth=figure(8, "GB/s"),
        peak={"fp32": figure(60, "GFLOP/s")},
        multiprocessors=1,
        host_link=figure(8, "GB/s"),
        extra={"context": nothing, "communicator": nothing},
    )
    level = Level(
        name="node",
        kind=FABRIC,
        devices=None,
        bandwidth=figure(1, "GB/s"),
        latency=figure(200, "us"),
    )
    island = Island(device=device, devices_per_node=ranks, nodes=1, levels=(level,))
    return Cluster(name=LOCAL, islands=(island,), source="made up")


def sample(seconds: float, spread: float = 0.02) -> Sample:
    return Sample(seconds=seconds, spread=spread, repeats=10, provenance="made up")


def operator_key(
    kind: str, direction: str, shape: tuple[int, ...], ranks: int
) -> OperatorKey:
    return OperatorKey(
        device=DEVICE,
        software=SOFTWARE,
        kind=kind,
        direction=direction,
        shape=shape,
        precision="fp32",
        backend="eager",
        co_running=f"ranks={ranks}" if ranks > 1 else "alone",
    )


def collective_key(
    collective: str, ranks: int, size_bytes: int, groups: int = 1
) -> CollectiveKey:
    return CollectiveKey(
        fabric=FABRIC,
        collective=collective,
        ranks=(ranks,),
        groups_at_once=groups,
        size_bytes=size_bytes,
    )


def samples(asked: Job, ranks: int = 4, share: float = 1.0, cores: int = 4) -> Samples:
    """Samples of what *asked* needs on up to *ranks* ranks, or of a *share* of it."""
    operators = {
        key: sample(_seconds(key) * _off(key))
        for key in {*_of_model(asked, ranks), *_of_step(asked, ranks)}
        if crc32(str(key).encode()) % 100 < 100 * share
    }
    collectives = {
        key: sample((2e-4 + key.size_bytes * len(key.collective) / 1e10) * _off(key))
        for key in _messages(ranks)
    }
    for how, saves_s in ((SOON, 5e-5), (BESIDE, 1e-4)):
        collectives |= {
            replace(key, collective=key.collective + how): sample(one.seconds - saves_s)
            for key, one in collectives.items()
            if key.size_bytes <= AMID_BYTES and key.collective in COLLECTIVES[:4]
        }
    return Samples(
        operators=operators,
        collectives=collectives,
        machine={
            "device": DEVICE,
            "noise": "quiet: made up",
            "cores": str(cores),
            GAPS: "0.001 0.006",
        },
        cluster=local(ranks),
    )


@cache
def on(
    name: str = "gpt-tiny", ranks: int = 4, share: float = 1.0, cores: int = 4
) -> Machine:
    """The made-up machine with samples for a model of the catalogue."""
    return machine(local(ranks), samples=samples(job(name), ranks, share, cores))


def _of_model(asked: Job, ranks: int) -> Iterator[OperatorKey]:
    for block in asked.graph.distinct():
        for operator in block.operators:
            for degrees in _degrees(asked, ranks):
                kind, dims = local_shape(operator, block, degrees)
                ways: tuple[str, ...] = ("forward", "backward")
                if operator.kind is Kind.MATMUL:
                    ways = ("forward", "backward-input", "backward-weight")
                shape = tuple(int(size) for size in dims)
                yield from (operator_key(kind, way, shape, ranks) for way in ways)


def _degrees(asked: Job, ranks: int) -> Iterator[Degrees]:
    for micro_batch in _divisors(asked.global_batch):
        for tp in _divisors(ranks):
            for split in (False, True):
                yield Degrees(
                    tp=np.asarray(tp),
                    cp=np.asarray(1),
                    micro_batch=np.asarray(micro_batch),
                    seq_len=asked.seq_len,
                    sequence_parallel=split,
                )


def _of_step(asked: Job, ranks: int) -> Iterator[OperatorKey]:
    for power in range(10, 26):
        for kind in (asked.optimizer, "accumulate", "gradient-norm", *UNIT_KINDS):
            yield operator_key(kind, "forward", (2**power,), ranks)


def _messages(ranks: int) -> Iterator[CollectiveKey]:
    for size in _divisors(ranks):
        for name in COLLECTIVES if size > 1 else ():
            if name != "send" or size == 2:
                for size_bytes in SIZES:
                    yield collective_key(name, size, size_bytes, ranks // size)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _seconds(key: OperatorKey) -> float:
    dearer = {"matmul": 4e-11, "attention": 4e-13, "lookup": 1e-12, "unit-reduce": 3e-9}
    rate = dearer.get(key.kind, 1e-9)
    return 2e-5 + prod(key.shape) * rate * (2.0 if key.direction == "backward" else 1.0)


def _off(key: object) -> float:
    """As if a clock had been read: up to 10 % either way, the same each time."""
    return 0.9 + crc32(repr(key).encode()) % 1000 / 5000
