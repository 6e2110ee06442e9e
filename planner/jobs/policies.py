"""Three ways to share a cluster, and which is best.

* `shared`: each job has some of the GPUs for some time, at once with others.
* `in turn`: one after another, each on as many GPUs as make it fastest.
* `sharded`: every model spilled on one GPU, its shards in turn with others' (Hydra).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.jobs.moldable import Moldable, schedule
from planner.jobs.sharded import sharded
from planner.jobs.times import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A job on GPUs *first* … *last* from *start_s* to *end_s*."""

    name: str
    first: int
    last: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a way to share comes to; `ends_s` is when each job is done."""

    name: str
    bars: tuple[Bar, ...]
    ends_s: Mapping[str, float]
    lower_s: float
    late: tuple[str, ...] = ()

    @property
    def makespan_s(self) -> float:
        return max(self.ends_s.values())

    @property
    def gap(self) -> float:
        return max(0.0, 1 - self.lower_s / self.makespan_s)


def policies(jobs: Sequence[Job], gpus: int, node: int) -> list[Policy]:
    """Every way that all jobs have, the best first: fewest late, then soonest."""
    found = list(_policies(jobs, gpus, node))
    deadlines = {job.name: job.entry.deadline_s for job in jobs}
    timed = [_with_late(one, deadlines) for one in found]
    return sorted(timed, key=lambda one: (len(one.late), one.makespan_s))


def _policies(jobs: Sequence[Job], gpus: int, node: int) -> Iterator[Policy]:
    if all(job.plans for job in jobs):
        molds = [_moldable(job) for job in jobs]
        yield _shared(molds, gpus, node)
        yield _in_turn(molds)
    if all(job.spilled is not None for job in jobs):
        yield _sharded(jobs, gpus)


def _moldable(job: Job) -> Moldable:
    return Moldable(
        name=job.name,
        seconds={n: job.seconds(one) for n, one in job.plans.items()},
        deadline_s=job.entry.deadline_s,
        priority=job.entry.priority,
    )


def _shared(molds: Sequence[Moldable], gpus: int, node: int) -> Policy:
    found = schedule(molds, gpus, node)
    bars = tuple(
        Bar(
            name=one.job.name,
            first=one.first,
            last=one.first + one.gpus - 1,
            start_s=one.start_s,
            end_s=one.end_s,
        )
        for one in found.placed
    )
    ends = {one.name: one.end_s for one in bars}
    return Policy(name="shared", bars=bars, ends_s=ends, lower_s=found.lower_s)


def _in_turn(molds: Sequence[Moldable]) -> Policy:
    """Of a higher priority first, then by deadline, then the shortest."""
    now, bars = 0.0, []
    order = sorted(
        molds,
        key=lambda job: (-job.priority, job.deadline_s, job.seconds[job.fastest]),
    )
    for job in order:
        end_s = now + job.seconds[job.fastest]
        bars.append(
            Bar(name=job.name, first=0, last=job.fastest - 1, start_s=now, end_s=end_s)
        )
        now = end_s
    ends = {one.name: one.end_s for one in bars}
    return Policy(name="in turn", bars=tuple(bars), ends_s=ends, lower_s=now)


def _sharded(jobs: Sequence[Job], gpus: int) -> Policy:
    work = {job.name: job.seconds(job.spilled) for job in jobs if job.spilled}
    found = sharded(work, gpus)
    bars = tuple(
        Bar(
            name=one.name,
            first=one.gpu,
            last=one.gpu,
            start_s=one.start_s,
            end_s=one.end_s,
        )
        for one in found.turns
    )
    return Policy(name="sharded", bars=bars, ends_s=found.ends_s, lower_s=found.lower_s)


def _with_late(policy: Policy, deadlines: Mapping[str, float]) -> Policy:
    late = tuple(
        name
        for name, end_s in policy.ends_s.items()
        if end_s > deadlines[name] * (1 + 1e-9)
    )
    return replace(policy, late=late)
