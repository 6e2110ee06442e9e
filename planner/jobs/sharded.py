"""Hydra's sharing: every model on one GPU, spilled, its shards in turn with others'.

Each model is cut into shards that fit beside the next one's prefetch; a job is a chain
of them, forward and backward, batch after batch, and runs on one GPU at a time, any of
them. Whenever a GPU is free it takes the next shard of the waiting job with the largest
remaining time (Nagrecha and Kumar, arXiv 2110.08633: Sharded-LRTF). No schedule ends
before max(Σ_j work_j / G, max_j work_j).

A run has millions of shards: so many at a time are taken as one, at most `UNITS` for
the longest job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

UNITS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Units of one job, one after the other on one GPU."""

    name: str
    gpu: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    turns: tuple[Turn, ...]
    lower_s: float

    @property
    def makespan_s(self) -> float:
        return max(one.end_s for one in self.turns)

    @property
    def gap(self) -> float:
        return max(0.0, 1 - self.lower_s / self.makespan_s)

    @property
    def ends_s(self) -> dict[str, float]:
        """When each job is done."""
        ends = dict[str, float]()
        for one in self.turns:
            ends[one.name] = max(ends.get(one.name, 0.0), one.end_s)
        return ends


def sharded(
    work_s: Mapping[str, float], gpus: int, unit_s: Mapping[str, float] | None = None
) -> Sharded:
    """Largest remaining time first, of jobs of so many seconds on one GPU each; in
    units of *unit_s*, by default equal parts of the longest job."""
    if unit_s is None:
        least_s = max(work_s.values()) / UNITS
        unit_s = dict.fromkeys(work_s, least_s)
    left, free = dict(work_s), [(0.0, gpu) for gpu in range(gpus)]
    heapify(free)
    running: list[tuple[float, str]] = []
    waiting, turns = set(work_s), list[Turn]()
    while any(seconds > 0 for seconds in left.values()):
        now, gpu = heappop(free)
        while running and running[0][0] <= now:
            waiting.add(heappop(running)[1])
        ready = [name for name in waiting if left[name] > 0]
        if not ready:  # wait for the next unit to end
            heappush(free, (running[0][0], gpu))
            continue
        name = max(ready, key=lambda one: (left[one], one))
        end_s = now + min(unit_s[name], left[name])
        left[name] = max(0.0, left[name] - unit_s[name])
        if left[name] < 1e-9 * work_s[name]:
            left[name] = 0.0
        waiting.discard(name)
        heappush(running, (end_s, name))
        heappush(free, (end_s, gpu))
        turns.append(Turn(name=name, gpu=gpu, start_s=now, end_s=end_s))
    lower_s = max(sum(work_s.values()) / gpus, max(work_s.values()))
    return Sharded(turns=tuple(_joined(turns)), lower_s=lower_s)


def _joined(turns: list[Turn]) -> list[Turn]:
    """Neighbours of one job on one GPU together."""
    found = dict[int, list[Turn]]()
    for one in sorted(turns, key=lambda turn: (turn.gpu, turn.start_s)):
        own = found.setdefault(one.gpu, [])
        if own and own[-1].name == one.name and own[-1].end_s == one.start_s:
            own[-1] = Turn(
                name=one.name,
                gpu=one.gpu,
                start_s=own[-1].start_s,
                end_s=one.end_s,
            )
        else:
            own.append(one)
    return [one for own in found.values() for one in own]
