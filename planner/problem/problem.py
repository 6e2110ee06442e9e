"""`Problem`: what is asked of a search, complete and free of defaults.

    minimise    value(layout)                    → Problem.value_of
    subject to  needed bytes ≤ memory limit      → Problem.fits
                layout is legal, uses all GPUs   → space
                what is pinned stays as it is    → space

A search only chooses; prices are `costmodel`'s.

`Found`: what a search over stages of any mesh comes to; and a layout simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import inf
from typing import Any

from costmodel.layout import (
    AUTO,
    NOTHING,
    RECOMPUTES,
    Layout,
    Offload,
    Uniform,
    recomputes_with,
    spell_out,
)
from costmodel.machine import Machine
from costmodel.options import Pins, cuts_products
from costmodel.simulation import (
    Estimate,
    estimate,
    fewest_layers,
    fitted,
    has_experts,
    with_odds,
)
from costmodel.stages import AtomBook, Known, capacity_bytes
from costmodel.support import (
    ALIKE,
    BY_STAGE,
    Capabilities,
    capabilities,
    refusals,
)
from profiles.errors import MeshwrightError, Unsupported
from profiles.hardware import precision
from profiles.models import Job
from profiles.units import HOUR_S

PROBABILITY = 0.95  # that what is recommended fits, unless another is asked for
EVEN = 0.5


class Objective(StrEnum):
    """What is made small. At a given number of GPUs and batch the first, the second
    and the last rank layouts alike: they differ in the unit of the value."""

    THROUGHPUT = "throughput"
    COST = "cost"
    MEMORY = "memory"
    TIME_TO_TRAIN = "time-to-train"

    @property
    def quantity(self) -> str:
        """What the value is, with its unit."""
        return _QUANTITIES[self]


_QUANTITIES = {
    Objective.THROUGHPUT: "step_time_s",
    Objective.COST: "dollars_per_token",
    Objective.MEMORY: "peak_needed_bytes",
    Objective.TIME_TO_TRAIN: "step_time_s",
}


def usual_probability(objective: Objective) -> float:
    """That of fitting, where nobody says: of what needs least an even chance, since
    nothing else would be surer."""
    return EVEN if objective is Objective.MEMORY else PROBABILITY


def asked_of(on: Machine, objective: Objective, probability: float) -> Machine:
    """*on* with the margin of *probability*; none where needed bytes are the value."""
    return with_odds(on, EVEN if objective is Objective.MEMORY else probability)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A choice and its simulated price."""

    choice: Uniform
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged(Candidate):
    """One that no `Uniform` spells out: stages differ, or operators have shardings of
    their own. `choice` is the layout that it was found beside."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A job on a machine, and what is fixed. A pin that is None is searched.

    `executable` leaves out what the runtime does not carry out, `runs_on` what the
    framework of that name does not have. What is needed, with
    the margin that the machine leaves free (`costmodel.machine.assembly.with_odds`),
    is at most `memory_limit_bytes`; where that is all of a device, it fits with
    `probability`. Where
    `offloads_to` names a tier, what is offloaded to it is searched too (`offloading`);
    where `leaves_to` does, activations may leave to it where retention is chosen by
    stage. With `free_bits` it is searched in how many bits they are kept. With
    `any_stage` stages may differ in mesh, and `pins.pp`, their number, need not divide
    the GPUs. Schedules that do not flush are not searched unless `allow_async`: no
    price says what stale gradients cost.
    """

    job: Job
    machine: Machine
    gpus: int
    pins: Pins
    precision: str
    gradient_format: str
    flash_attention: bool
    memory_limit_bytes: float
    offload: Offload = NOTHING
    offloads_to: str | None = None
    leaves_to: str | None = None
    objective: Objective = Objective.THROUGHPUT
    executable: bool = False
    runs_on: str | None = None
    probability: float = 0.5
    any_stage: bool = False
    allow_async: bool = False
    free_bits: bool = False

    def __post_init__(self) -> None:
        running = self.machine.running(self.gpus)  # samples know how many are at work
        object.__setattr__(self, "machine", running)
        if self.objective is Objective.COST and self._dollars_per_h is None:
            raise Unsupported(
                f"--objective cost: no price is known for {self.machine.device.name}; "
                "give its `cost`, or the `price` of a node, in USD/h in a cluster "
                "file, or leave --objective out: at a fixed number of GPUs the fastest "
                "layout is the cheapest"
            )

    @property
    def _dollars_per_h(self) -> float | None:
        """What a device costs; of unlike islands, the first one's."""
        return self.machine.cluster.islands[0].device_dollars_per_h

    @cached_property
    def book(self) -> AtomBook:
        """Prices of the blocks of all candidates, made as they are asked for."""
        return AtomBook(
            job=self.job,
            on=self.machine,
            policy=precision(self.precision, gradient=self.gradient_format),
            flash_attention=self.flash_attention,
            offload=self.offload,
        )

    @cached_property
    def recomputes(self) -> tuple[str, ...]:
        """What may be made again, by the code of a candidate's column: the presets,
        and the operators that are pinned by name."""
        pinned = self.pins.recompute
        if pinned == AUTO:
            return (*RECOMPUTES, AUTO)
        return recomputes_with(*([pinned] if pinned else []))

    def by_stage(self) -> Problem:
        """The same with retention chosen stage by stage in every candidate."""
        return self.repinned(replace(self.pins, recompute=AUTO))

    def value_of(self, step_time_s: Any, needed_bytes: Any) -> Any:
        """The objective's value; numbers or arrays."""
        if self.objective is Objective.MEMORY:
            return needed_bytes
        dollars_per_h = self._dollars_per_h
        if self.objective is Objective.COST and dollars_per_h is not None:
            dollars_per_s = self.gpus * dollars_per_h / HOUR_S
            return step_time_s * (dollars_per_s / self.job.tokens)
        return step_time_s

    def value(self, candidate: Candidate) -> float:
        """The objective's value of a simulated candidate."""
        found = candidate.estimate
        return float(self.value_of(found.step_time_s, found.peak_secured_bytes))

    @property
    def needs_sequence_parallel(self) -> bool:
        """Whether tensor parallelism is not without it: beside experts, and where it
        is to hide behind products."""
        return has_experts(self.job) or cuts_products(self.pins)

    @cached_property
    def host_limit_bytes(self) -> float:
        """What a node offers to what is offloaded; infinite where nothing is, or
        nobody says."""
        if not self.offload.anything:
            return inf
        found = capacity_bytes(self.machine.cluster, self.offload.tier)
        return inf if found is None else found

    def fits(self, candidate: Candidate) -> bool:
        found = candidate.estimate
        if found.away is not None and not found.away.fits:
            return False
        least = self.objective is Objective.MEMORY and self.by_odds
        if least and found.probability_fits < self.probability:
            return False
        if len(self.machine.cluster.islands) == 1:
            return found.peak_secured_bytes <= self.memory_limit_bytes
        share = self.memory_limit_bytes / self.machine.device.capacity_bytes
        ranks = zip(found.memory, found.capacities_bytes, strict=True)
        return all(float(item.secured) <= share * most for item, most in ranks)

    def simulate(self, choice: Uniform, known: Known | None = None) -> Candidate:
        """*choice* judged by the event simulation, from prices as far as *known*; its
        retention, where that is `auto`, is the cheapest by stage that fits."""
        if choice.recompute == AUTO:
            return self._fitted(choice, known)
        layout = spell_out(choice, self.job.graph, self.job.global_batch)
        found = estimate(
            self.job, self.machine.cluster, layout, on=self.machine, known=known
        )
        return Candidate(choice=choice, estimate=found)

    def _fitted(self, choice: Uniform, known: Known | None) -> Candidate:
        """Where activations left, the choice tells the largest share. A framework that
        cannot choose by stage chooses of how many layers of each."""
        if not self.offers("recompute in", BY_STAGE):
            choice, found = fewest_layers(
                choice,
                self.job,
                self.machine,
                self.memory_limit_bytes,
                known or Known(),
            )
            return Candidate(choice=choice, estimate=found)
        own = self.capabilities
        some = None if own is None else frozenset(own.has["recompute"].values)
        found = fitted(
            choice,
            self.job,
            self.machine,
            self.memory_limit_bytes,
            executable=self.executable,
            leaves_to=self.leaves_to,
            known=known,
            allowed=some,
        )
        if self.leaves_to is not None:
            away = replace(
                choice.offload,
                activations=found.layout.away_share,
                tier=self.leaves_to,
            )
            choice = replace(choice, offload=away)
        return Candidate(choice=choice, estimate=found)

    def with_hosts_of_any_size(self) -> Problem:
        """The same on nodes that do not say what their hosts and drives hold."""
        cluster = self.machine.cluster
        islands = tuple(
            replace(one, host_memory=None, nvme=None) for one in cluster.islands
        )
        cluster = replace(cluster, islands=islands)
        return replace(self, machine=replace(self.machine, cluster=cluster))

    def repinned(self, pins: Pins) -> Problem:
        """The same with other *pins*, on which no price hangs: one book serves both."""
        found = replace(self, pins=pins)
        vars(found)["book"] = self.book
        return found

    @cached_property
    def capabilities(self) -> Capabilities | None:
        """What there is of all that is priced; None where nothing is left out of it
        for a framework's sake."""
        return None if self.runs_on is None else capabilities(self.runs_on)

    def offers(self, fact: str, value: str) -> bool:
        """Whether layouts with this *value* of a *fact* are asked for at all."""
        return self.capabilities is None or self.capabilities.offers(fact, value)

    @property
    def recomputes_in_part(self) -> bool:
        """Whether some layers of a stage may recompute where others do not."""
        return any(self.offers("recompute in", one) for one in (ALIKE, BY_STAGE))

    def unlimited(self) -> Problem:
        """The same of all that is priced, whatever software lacks."""
        return replace(self, executable=False, runs_on=None)

    def refusals(self, layout: Layout) -> list[str]:
        """Why the software that the plan is for would not run *layout*."""
        found = refusals(layout, self.job) if self.executable else []
        return found + (
            self.capabilities.lacks(layout, self.job) if self.capabilities else []
        )

    def at_its_word(self) -> Problem:
        """The same without a margin: what fits by its estimate alone fits."""
        on = with_odds(self.machine, EVEN)
        found = replace(self, machine=on, probability=EVEN)
        vars(found)["book"] = self.book
        return found

    @property
    def by_odds(self) -> bool:
        """Whether the limit is that of a probability to fit, and not of bytes."""
        return self.memory_limit_bytes == self.machine.device.capacity_bytes

    def forget(self) -> None:
        """Drop what a search made and is large: prices and candidates, which are made
        anew if they are asked for again."""
        for name in ("book", "space"):
            vars(self).pop(name, None)

    def without_pins(self) -> Problem:
        return replace(self, pins=Pins(overlap=self.pins.overlap))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Candidates that fit, the best first; how many partitions were weighed and
    simulated, what none goes below (the value and the seconds), and whether all was
    looked at; seconds that none takes less than whose cuts lie between any layers."""

    candidates: tuple[Staged, ...]
    partitions: int
    simulated: int
    lower: float
    lower_s: float
    complete: bool
    any_cut_s: float


def simulate(problem: Problem, beside: Uniform, layout: Layout) -> Staged | None:
    """*layout* simulated; None if it cannot run or does not fit."""
    try:
        found = estimate(
            problem.job, problem.machine.cluster, layout, on=problem.machine
        )
    except MeshwrightError:
        return None
    candidate = Staged(choice=beside, estimate=found)
    return candidate if problem.fits(candidate) else None
