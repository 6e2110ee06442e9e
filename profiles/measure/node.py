"""`Node`: what a machine tells the others that it measures with."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from profiles.errors import Contradiction, Unsupported
from profiles.measure import machine
from profiles.measure.facts import cache_bytes
from profiles.measure.question import Question


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
                    f"the machines were asked for different things: {name} is {value} "
                    f"on node 0 and {node.asked.get(name)} on node {number}; give the "
                    "same options on each"
                )
        if node.device != first.device:
            raise Unsupported(
                f"node 0 is {first.device} and node {number} {node.device}: "
                "machines of unlike devices are measured in profiles of their own"
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
