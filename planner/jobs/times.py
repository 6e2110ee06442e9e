"""How long each job takes on each number of GPUs: a plan for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from costmodel.options import Pins
from planner.api import solve
from planner.jobs.jobs_file import Entry
from planner.problem import Asked, Candidate, Goal
from planner.search import Limits, search_called
from profiles import load_model
from profiles.commandline import JobOptions, counted
from profiles.errors import InvalidQuestion, OutOfTime
from profiles.hardware import Cluster
from profiles.models import Model

SPILLED: Final = "auto"  # --offload, of a job that has one GPU of a cluster alone


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job with its plans: by the number of GPUs, and *spilled* on one."""

    name: str
    entry: Entry
    model: Model
    plans: dict[int, Candidate] = field(default_factory=dict)
    spilled: Candidate | None = None

    @property
    def batch(self) -> int:
        return self.entry.global_batch or self.model.global_batch

    @property
    def steps(self) -> float:
        if self.entry.steps is not None:
            return self.entry.steps
        tokens = self.entry.tokens or 0.0
        return tokens / self.batch / (self.entry.seq_len or self.model.seq_len)

    def seconds(self, plan: Candidate) -> float:
        return self.steps * plan.estimate.step_time_s


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans jobs on *cluster*, as the rest of the command line says."""

    cluster: Cluster
    where: str
    options: JobOptions
    pins: Pins
    goal: Goal
    time_limit_s: float

    def jobs(self, entries: Sequence[tuple[str, Entry]], gpus: int) -> Iterator[Job]:
        """Each job on every number of GPUs up to *gpus*; like ones are planned once."""
        known: dict[tuple[str, int | None, int], Job] = {}
        counts = sizes(gpus, self.cluster.island.devices_per_node)
        for name, entry in counted(entries, len(entries), "planning jobs"):
            model = load_model(entry.model, seq_len=entry.seq_len)
            one = Job(name=name, entry=entry, model=model)
            like = (entry.model, entry.seq_len, one.batch)
            if like not in known:
                known[like] = self._planned(one, counts)
            before = known[like]
            yield replace(one, plans=before.plans, spilled=before.spilled)

    def _planned(self, job: Job, counts: Sequence[int]) -> Job:
        """Raises what is wrong with the question on every number of GPUs."""
        spill = replace(self.pins, offload=self.pins.offload or SPILLED)
        plans, wrong = dict[int, Candidate](), list[InvalidQuestion]()
        spilled: Candidate | None = None
        for gpus, pins in [*((n, self.pins) for n in counts), (1, spill)]:
            try:
                found = self._best(job, gpus, pins)
            except InvalidQuestion as error:
                wrong.append(error)
                continue
            if pins is spill:
                spilled = found
            elif found is not None:
                plans[gpus] = found
        if len(wrong) > len(counts):
            raise wrong[0]
        return replace(job, plans=plans, spilled=spilled)

    def _best(self, job: Job, gpus: int, pins: Pins) -> Candidate | None:
        entry = job.entry
        options = replace(
            self.options,
            model=entry.model,
            gpus=gpus,
            seq_len=entry.seq_len,
            global_batch=job.batch,
        )
        asked = Asked(
            model=job.model,
            cluster=self.cluster,
            where=self.where,
            job=options,
            pins=pins,
            goal=self.goal,
        )
        limits = Limits(time_limit_s=self.time_limit_s, runners_up=0).begun()
        search = search_called("branch-and-bound")
        try:
            return solve(asked.pose().problem, search, limits).best
        except OutOfTime:
            return None


def sizes(gpus: int, node: int) -> list[int]:
    """Numbers of GPUs that a job may have: parts of a node that halve it, and nodes
    doubled.

    >>> sizes(40, 8), sizes(6, 8)
    ([1, 2, 4, 8, 16, 32, 40], [1, 2, 4])
    """
    found, part = list[int](), node
    while part >= 1:
        found.append(part)
        part = part // 2 if part % 2 == 0 else 0
    whole = 2 * node
    while whole <= gpus:
        found.append(whole)
        whole *= 2
    if gpus % node == 0:
        found.append(gpus)
    return sorted({n for n in found if n <= gpus} | {1})
