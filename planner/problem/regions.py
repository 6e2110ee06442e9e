"""Where stages may lie: on all devices, or on those of one of unlike islands.

A pipeline crosses slow links almost for free, gradients and products do not (Yang et
al., ICPP 2024), and a stage on two kinds of devices takes as long as the slower one: so
stages lie inside islands, which the model goes through one after another, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, permutations
from typing import Final

from costmodel.layout import Ranges
from costmodel.machine import Machine
from costmodel.stages import machines_of, spans_of
from planner.problem.problem import Problem
from profiles.hardware import Island

Alike = tuple[int, Island]
MOST_LAYERS: Final = 400  # that are cut over unlike meshes: it takes their square
MOST_ORDERED: Final = 3  # islands in every order; more as they are, and turned round


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """Devices that a stage may be on: positions in model order, and their ranks.

    `span` is None where that is all of them.
    """

    machine: Machine
    devices: int
    first_rank: int = 0
    span: tuple[int, int] | None = None

    @property
    def ranks(self) -> Ranges:
        """All of them."""
        return Ranges(((self.first_rank, self.first_rank + self.devices - 1),))

    def problem(self, whole: Problem) -> Problem:
        """What the stages here are asked: *whole* on these devices alone."""
        if self.span is None:
            return whole
        share = whole.memory_limit_bytes / whole.machine.device.capacity_bytes
        return replace(
            whole,
            machine=self.machine,
            gpus=self.devices,
            memory_limit_bytes=share * self.machine.device.capacity_bytes,
        )


def is_unlike(problem: Problem) -> bool:
    """Whether the cluster joins several islands."""
    return len(problem.machine.cluster.islands) > 1


def only_unlike(problem: Problem) -> bool:
    """Whether stages are of any mesh in all layouts: over unlike islands, or where they
    may be and as many alike ones do not divide the GPUs."""
    return is_unlike(problem) or (problem.any_stage and not has_even_depth(problem))


def too_deep(problem: Problem) -> bool:
    """Whether the model has more layers than `--any-stage` cuts over unlike meshes."""
    return problem.any_stage and problem.job.graph.body > MOST_LAYERS


def has_even_depth(problem: Problem) -> bool:
    """Whether the GPUs are a multiple of the number of stages, where it is pinned."""
    return problem.gpus % (problem.pins.pp or 1) == 0


def orders(problem: Problem) -> Iterator[tuple[Place, ...]]:
    """The places of a pipeline in model order, for each order of the islands."""
    if not is_unlike(problem):
        yield (Place(machine=problem.machine, devices=problem.gpus),)
        return
    islands = list(_islands(problem))
    if len(islands) <= MOST_ORDERED:
        ways = [list(way) for way in permutations(islands)]
    else:
        ways = [islands, islands[::-1]]
    seen: list[list[Alike]] = []
    for way in ways:
        alike = [(one.devices, one.machine.cluster.island) for one in way]
        if alike in seen:  # islands that are alike change places
            continue
        seen.append(alike)
        ends = list(accumulate((one.devices for one in way), initial=0))
        spans = pairwise(ends)
        yield tuple(
            replace(one, span=span) for one, span in zip(way, spans, strict=True)
        )


def _islands(problem: Problem) -> Iterator[Place]:
    """The islands that the job's ranks reach, each by itself."""
    for span in spans_of(problem.machine.cluster):
        last = problem.gpus - 1 if span.last is None else span.last
        devices = min(last, problem.gpus - 1) - span.first + 1
        if devices > 0:
            ranks = Ranges(((span.first, span.first + devices - 1),))
            (machine,) = machines_of(problem.machine, [ranks])
            yield Place(machine=machine, devices=devices, first_rank=span.first)
