"""The front door: what a layout costs, in seconds and bytes.

    layout → priced stages → schedule run on its timeline → estimate with memory

`estimate` is what `simulate` prints and what judges the planner's finalists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from costmodel.layout import Layout
from costmodel.machine import Machine, machine
from costmodel.schedule import copies_held, program_of, require_schedule
from costmodel.simulation.assembly import BREAKDOWN, Accounts
from costmodel.simulation.price_sources import price_sources
from costmodel.simulation.result import Answer, recomputed_flops
from costmodel.simulation.uncertainty import exchanged_share, spread_of
from costmodel.stages import (
    Known,
    LayoutPricer,
    Memory,
    Peak,
    Placed,
    away_of,
    degrees_of,
    devices_of,
    memories,
    price_together,
)
from costmodel.support import MOST_PASSES, require_legal_layout
from costmodel.timeline import StageCosts, Timeline, simulate, simulate_together
from profiles.errors import InvalidSpec, MeshwrightError, Unsupported
from profiles.hardware import Cluster
from profiles.models import Job

__all__ = ["BREAKDOWN", "Estimate", "estimate", "recomputed_flops"]
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class Estimate(Answer):
    """A layout's price with the run of its schedule, action by action."""

    timeline: Timeline


def estimate(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    *,
    on: Machine | None = None,
    assumed: Mapping[str, Any] | None = None,
    warnings: tuple[str, ...] = (),
    known: Known | None = None,
) -> Estimate:
    """Price *layout* of *job* on *cluster*, or on a machine prepared from it.

    `estimate(…, on=machine(cluster, samples=read_samples("samples.json")))` prices by
    measured samples first. What is *known* of the job on the machine is not priced
    again.

    Raises InvalidSpec for a layout of another model or schedule, Contradiction for
    one that cannot run so, Unsupported for what is not priced yet.
    """
    placed = _placed(job, layout, on or machine(cluster), known)
    ready = _ready(placed)
    timeline = simulate(*_shape(layout), ready.costs)
    ran = ready.ran(timeline)
    (memory,) = memories([ran.peak])
    answered = _answered(ran, memory, assumed or {}, warnings)
    return Estimate(timeline=timeline, **answered)


def answers(
    asked: Iterable[tuple[Job, Layout, Machine]],
) -> Iterator[Answer | MeshwrightError]:
    """`estimate` of each layout on its machine, or why it has none; without timelines.

    What they share is priced once, and their schedules are run side by side.
    """
    placed = list(_tried(lambda question: _placed(*question), asked))
    price_together(
        pricer for item in placed if isinstance(item, Placed) for pricer in item.pricers
    )
    ready = list(_tried(_ready, placed))
    going = [item for item in ready if isinstance(item, _Ready)]
    ran: dict[int, _Run] = {}
    asking = ((program_of(*_shape(one.layout)), one.costs) for one in going)
    for number, timeline in simulate_together(asking):
        ran[number] = going[number].ran(timeline)
    runs = [ran[number] for number in range(len(going))]
    ended = zip(runs, memories([one.peak for one in runs]), strict=True)
    for item in ready:
        if isinstance(item, MeshwrightError):
            yield item
        else:
            yield Answer(**_answered(*next(ended), {}, ()))


def _tried(
    call: Callable[[A], B], items: Iterable[A | MeshwrightError]
) -> Iterator[B | MeshwrightError]:
    """What *call* makes of each item, or the error that it raises or already is."""
    for item in items:
        if isinstance(item, MeshwrightError):
            yield item
            continue
        try:
            yield call(item)
        except MeshwrightError as error:
            yield error


def _placed(
    job: Job, layout: Layout, on: Machine, known: Known | None = None
) -> Placed:
    where = on.running(layout.gpus)
    _require_priced(layout)
    require_legal_layout(layout, job, where.cluster)
    pricer = LayoutPricer(
        job=job, layout=layout, machine=where, known=Known() if known is None else known
    )
    return Placed(pricer=pricer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What is kept of a schedule that was run."""

    pricer: LayoutPricer
    step_time_s: float
    breakdown_s: Mapping[str, float]
    peak: Peak


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A layout whose stages are priced, before its schedule is run."""

    pricer: LayoutPricer
    accounts: Accounts
    costs: StageCosts

    @property
    def layout(self) -> Layout:
        return self.pricer.layout

    def ran(self, timeline: Timeline) -> _Run:
        return _Run(
            pricer=self.pricer,
            step_time_s=timeline.makespan_s,
            breakdown_s=self.accounts.breakdown(timeline),
            peak=self.accounts.peak(timeline),
        )


def _ready(placed: Placed) -> _Ready:
    pricer = placed.pricer
    accounts = Accounts(
        job=pricer.job,
        layout=pricer.layout,
        stages=placed.columns(),
        on=pricer.machine,
    )
    require_schedule(*_shape(pricer.layout))
    return _Ready(pricer=pricer, accounts=accounts, costs=accounts.costs())


def _shape(layout: Layout) -> tuple[str, int, int, int]:
    """What a program is compiled of."""
    return layout.schedule, layout.pp, layout.virtual_stages, layout.micro_batches


def _answered(
    ran: _Run,
    memory: tuple[Memory, ...],
    assumed: Mapping[str, Any],
    warnings: tuple[str, ...],
) -> dict[str, Any]:
    """The fields of an answer."""
    pricer = ran.pricer
    job, layout, where = pricer.job, pricer.layout, pricer.machine
    sources = None if where.measured is None else price_sources(pricer)
    devices = devices_of(layout, where)
    return {
        "job": job,
        "layout": layout,
        "step_time_s": ran.step_time_s,
        "breakdown_s": ran.breakdown_s,
        "memory": memory,
        "capacities_bytes": devices.capacities_bytes,
        "away": away_of(ran.peak, layout, where.cluster),
        "peak_flops_per_s": devices.peak_flops_per_s,
        "spread": spread_of(
            where, exchanged=exchanged_share(ran.breakdown_s), sources=sources
        ),
        "device": devices.name,
        "device_cost": devices.cost,
        "device_power_w": devices.power_w,
        "price_sources": sources,
        "stops_early": where.framework.stops_early,
        "assumed": assumed,
        "warnings": tuple(dict.fromkeys((*warnings, *where.remarks()))),
    }


def _require_priced(layout: Layout) -> None:
    passes = 2 * len(layout.stages) * layout.micro_batches
    if passes > MOST_PASSES:
        raise InvalidSpec(
            f"{layout.micro_batches:,} micro-batches in {len(layout.stages)} stages "
            f"are {passes:,} passes, most {MOST_PASSES:,}: choose larger micro-batches"
        )
    held = tuple(stage.held_by for stage in layout.stages)
    pp = layout.pp
    if len(layout.stages) != pp * layout.virtual_stages:
        raise InvalidSpec(
            f"{len(layout.stages)} stages are not {pp} pipeline ranks × "
            f"{layout.virtual_stages} virtual stages"
        )
    wanted = tuple(
        zip(*copies_held(layout.schedule, pp, layout.virtual_stages), strict=True)
    )
    if held != wanted:
        raise InvalidSpec(
            f"schedule {layout.schedule} holds its stages on ranks {wanted}, the "
            f"layout says {held}"
        )
    shapes = {(stage.held_by, degrees_of(stage.mesh)) for stage in layout.stages}
    if layout.stages[0].held_by[1:] and len({shape for _, shape in shapes}) > 1:
        raise Unsupported(
            f"{layout.schedule} with unlike meshes is not priced: its copies sum their "
            "gradients; give all stages one mesh"
        )
    if len(shapes) > pp:
        raise Unsupported(
            "stages of one pipeline rank with unlike meshes are not priced; give all "
            "virtual stages of a rank one mesh"
        )
