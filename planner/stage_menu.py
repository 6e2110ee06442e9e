"""What each layer costs on every mesh that a stage may have: the menu of a partition.

A mesh is a power of two of devices inside a fast domain, or whole domains, cut into
tp × dp (Zheng et al., OSDI 2022, section 5.2); with it go recompute and ep. Each is
priced as a pipeline with a layer a stage, all of them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Final

import numpy as np

from costmodel.columns import RECOMPUTES
from costmodel.data_parallel import DataParallel
from costmodel.layout import CP_KINDS, Layout, Stage
from costmodel.layout_price import LayoutPricer, price_together
from costmodel.memory import memory, pipeline_buffers
from costmodel.mesh_parallel import data_parallel
from costmodel.ranges import Ranges
from costmodel.stage import StagePrice
from costmodel.uniform import Uniform, spell_out
from planner.axes import Axes
from planner.problem import Problem
from planner.stage_bound import CLOSE, cut_bound_s
from planner.stage_links import ends_s, with_links
from planner.stage_partition import Array, Option, Partition, partitions
from planner.stage_places import Place, orders
from planner.table import divisors
from planner.trip_bound import trip_bound_s
from profiles.errors import MeshwrightError
from profiles.units import GB

ALIKE: Final = 0.25  # ends that cost so nearly the same are one choice
_Priced = tuple[Layout, Option, Array, Place]  # with passes alone, by layer


@dataclass(frozen=True, kw_only=True)
class Menu:
    """The options of stages for one number of micro-batches; their step ends with
    `end_s` that are no stage's own."""

    problem: Problem
    micro_batches: int
    layouts: tuple[Layout, ...]  # of each option, a layer a stage
    options: tuple[Option, ...]
    busy_s: tuple[Array, ...]  # of each option, passes alone, by layer
    places: tuple[Place, ...]  # of each option
    end_s: float = 0.0

    @property
    def lower_s(self) -> float:
        """No pipeline of these stages takes less, whatever its cuts.

        Every device is busy with what it holds, m times: the mean over devices of the
        least device-seconds, those of each place weighed by how fast it is (any weights
        bound, by duality); and one micro-batch goes through all layers and back.
        """
        if not self.options:
            return float("inf")
        through = float(np.array(self.busy_s).min(axis=0).sum())
        places = dict.fromkeys(self.places)
        works = {place: self._work(place) for place in places}
        rate = sum(place.devices / float(works[place].sum()) for place in places)
        shares = [works[place] / works[place].sum() for place in places]
        work_s = float(np.min(shares, axis=0).sum()) / rate
        return max(self.micro_batches * work_s, through) + self.end_s

    def tighter_s(self, at_most_s: float) -> float:
        """The same, as far as *at_most_s* (which is finite), of stages that are whole
        layers on whole meshes and hold what they must."""
        least_s = self.lower_s
        if least_s >= at_most_s:
            return least_s
        return self._bound_s(least_s, at_most_s)

    def may_beat(self, seconds: float) -> bool:
        """Whether `tighter_s` is below *seconds*, without saying by how much."""
        if self.lower_s >= seconds or seconds == inf:
            return self.lower_s < seconds
        return self._bound_s(seconds * (1 - CLOSE), seconds) < seconds

    def _bound_s(self, from_s: float, at_most_s: float) -> float:
        bound_s = cut_bound_s if len(set(self.places)) == 1 else trip_bound_s
        found = bound_s(
            self.options,
            self.busy_s,
            devices=self.problem.gpus,
            micro_batches=self.micro_batches,
            at_least_s=max(from_s - self.end_s, 0.0),
            at_most_s=at_most_s - self.end_s,
        )
        return found + self.end_s

    def best(self, *, below_s: float = inf, tolerance: float = 0.0) -> list[Partition]:
        """Partitions whose steps the programme puts below *below_s*, the best first."""
        return partitions(
            self.options,
            devices=self.problem.gpus,
            micro_batches=self.micro_batches,
            stages=self.problem.pins.pp,
            tolerance=tolerance,
            below_s=below_s - self.end_s,
        )

    def _work(self, place: Place) -> Array:
        """Device-seconds of each layer at *place*, by the option that needs least."""
        here = [
            busy_s * option.devices
            for busy_s, option, where in zip(
                self.busy_s, self.options, self.places, strict=True
            )
            if where is place
        ]
        return np.asarray(np.min(here, axis=0))

    def layout(self, partition: Partition) -> Layout:
        """*partition* spelled out; larger meshes get the first ranks of their place, so
        that all lie evenly in their domains."""
        parts = partition.parts
        sizes = [self.options[part.option].devices for part in parts]
        ranks: dict[int, Ranges] = {}
        taken: Counter[int] = Counter()  # of the ranks from a place's first on
        for place in sorted(range(len(parts)), key=lambda one: -sizes[one]):
            start = self.places[parts[place].option].first_rank
            first = start + taken[start]
            ranks[place] = Ranges(((first, first + sizes[place] - 1),))
            taken[start] += sizes[place]
        stages = tuple(
            _joined(
                self.layouts[part.option].stages[part.first : part.last + 1],
                ranks[place],
                place,
            )
            for place, part in enumerate(parts)
        )
        plain = self.layouts[parts[0].option]
        return replace(plain, stages=stages)


def menus(problem: Problem) -> Iterator[Menu]:
    """Menus for each number of micro-batches and order of places, priced when they are
    asked for: of several places, one for each cost of ends that are apart."""
    batch, pinned = problem.job.global_batch, problem.pins.micro_batches
    for m in divisors(batch):
        if pinned in (None, m):
            known: dict[int, list[_Priced]] = {}
            for places in orders(problem):
                yield from _by_ends(_menu(problem, m, places, known))


def _menu(
    problem: Problem, m: int, places: Sequence[Place], known: dict[int, list[_Priced]]
) -> Menu:
    """The menu of *places* in that order; what stages cost at each of them is *known*
    by its first rank, and the same in every order."""
    for place in places:
        if place.first_rank not in known:
            here = place.problem(problem)
            known[place.first_rank] = _of_place(here, m, place)
    every = [
        one
        for number, place in enumerate(places)
        for one in _linked(
            [
                (layout, replace(option, span=place.span), busy_s, place)
                for layout, option, busy_s, _ in known[place.first_rank]
            ],
            problem,
            [None, *places, None][number : number + 3],
        )
    ]
    return Menu(
        problem=problem,
        micro_batches=m,
        layouts=tuple(layout for layout, _, _, _ in every),
        options=tuple(option for _, option, _, _ in every),
        busy_s=tuple(busy_s for _, _, busy_s, _ in every),
        places=tuple(place for _, _, _, place in every),
    )


def _linked(
    priced: list[_Priced], problem: Problem, places: Sequence[Place | None]
) -> list[_Priced]:
    """*priced* at the middle one of *places* with what is sent from there; on one
    island the programme asks for no transfers."""
    before, here, after = places
    if here is None or here.span is None:
        return priced
    options = with_links(
        [option for _, option, _, _ in priced],
        [layout for layout, _, _, _ in priced],
        problem,
        here,
        before=before,
        after=after,
    )
    return [
        (layout, option, busy_s, place)
        for option, (layout, _, busy_s, place) in zip(options, priced, strict=True)
    ]


def _by_ends(menu: Menu) -> Iterator[Menu]:
    """*menu*, or as many as there are costs of summing the tied gradient between the
    pipeline's two ends: with the options that have those there, or less."""
    places = sorted(set(menu.places), key=lambda place: place.span or (0, 0))
    if len(places) < 2:
        yield menu
        return
    first, last = places[0], places[-1]
    each_s = ends_s(menu.layouts, menu.problem, first, last)
    at_ends = [
        cost
        for cost, place in zip(each_s, menu.places, strict=True)
        if place in (first, last)
    ]
    for least_s, most_s in _groups(at_ends):
        options = tuple(
            replace(
                option,
                starts=place is first and cost <= most_s,
                ends=place is last and cost <= most_s,
            )
            for option, place, cost in zip(
                menu.options, menu.places, each_s, strict=True
            )
        )
        if any(one.starts for one in options) and any(one.ends for one in options):
            yield replace(menu, end_s=least_s, options=options)


def _groups(costs: Sequence[float]) -> Iterator[tuple[float, float]]:
    """The least and the most of *costs* that are nearly alike."""
    least = most = -1.0
    for cost in sorted(costs):
        if least >= 0 and cost > least * (1 + ALIKE):
            yield least, most
            least = cost
        least, most = (cost if least < 0 else least), cost
    yield least, most


def _of_place(problem: Problem, m: int, place: Place) -> list[_Priced]:
    """Every option that a stage at *place* has, as *problem* asks there."""
    layouts = tuple(_layouts(problem, m))
    pricers = [
        LayoutPricer(job=problem.job, layout=layout, machine=problem.machine)
        for layout in layouts
    ]
    price_together(pricers)
    prices = [pricer.columns() for pricer in pricers]
    return [
        (
            layout,
            replace(
                _option(problem, layout, price),
                capacity_bytes=problem.memory_limit_bytes,
                span=place.span,
            ),
            price.forward_s + price.backward_s,
            place,
        )
        for layout, price in zip(layouts, prices, strict=True)
    ]


def _layouts(problem: Problem, m: int) -> Iterator[Layout]:
    for choice in _choices(problem, m):
        try:
            yield spell_out(choice, problem.job.graph, problem.job.global_batch)
        except MeshwrightError:  # a degree that does not divide
            continue


def _choices(problem: Problem, m: int) -> Iterator[Uniform]:
    """Every mesh with its treatments, for a stage of a layer."""
    axes, pins, graph = Axes(problem=problem), problem.pins, problem.job.graph
    share, cp = problem.job.global_batch // m, pins.cp or 1
    widths = set(axes.tp())
    for devices in _sizes(problem):
        if devices % cp:
            continue
        for tp in divisors(devices // cp):
            dp = devices // (tp * cp)
            fits = tp in widths and share % dp == 0 and pins.dp in (None, dp)
            if not fits or pins.micro_batch not in (None, share // dp):
                continue
            split = tp > 1 if pins.sequence_parallel is None else pins.sequence_parallel
            zero = 1 if pins.zero is None else pins.zero
            for (ep, etp), (code,), (kind,) in product(
                axes.experts(tp, cp, dp),
                axes.recomputes(),
                axes.cp_kinds(tp, cp)[:1],  # one for the whole pipeline
            ):
                yield Uniform(
                    tp=tp,
                    pp=graph.body,
                    dp=dp,
                    cp=cp,
                    cp_kind=CP_KINDS[kind],
                    ep=ep,
                    etp=etp,
                    micro_batch=share // dp,
                    zero=zero,
                    zero_group=pins.zero_group or dp,
                    sequence_parallel=split and tp > 1,
                    recompute=RECOMPUTES[code],
                    flash_attention=problem.flash_attention,
                    precision=problem.precision,
                    gradient_format=problem.gradient_format,
                    offload=problem.offload,
                )


def _sizes(problem: Problem) -> list[int]:
    """Devices of a stage: powers of two in a fast domain, then whole domains."""
    domain = min(problem.machine.island.domain, problem.gpus)
    inside = [2**power for power in range(domain.bit_length()) if 2**power <= domain]
    return sorted({*inside, *range(domain, problem.gpus + 1, domain)})


def _option(problem: Problem, layout: Layout, price: StagePrice) -> Option:
    mesh = layout.stages[0].mesh
    m = layout.micro_batches
    once_s = price.reduce_s + price.step_s + price.gather_s
    parallel = data_parallel(mesh, layout.stages[0].plans[0].zero, 2)
    base, states, saved, working = _bytes(problem, layout, parallel)
    buffers = float(pipeline_buffers(problem.machine, 2))
    return Option(
        devices=mesh.size,
        seconds=price.forward_s + price.backward_s + once_s / m,
        saved_bytes=price.saved_bytes * saved * buffers,
        state_bytes=(price.parameters + price.expert_parameters) * states,
        working_bytes=working
        * np.maximum(price.forward_working_bytes, price.backward_working_bytes),
        base_bytes=base,
    )


def _bytes(
    problem: Problem, layout: Layout, parallel: DataParallel
) -> tuple[float, float, float, float]:
    """Of a rank's memory what is always there, and the bytes for each parameter, each
    saved byte and each working byte."""
    unit = np.eye(4)[1:] * GB
    software = problem.machine.software
    found = memory(
        parameters=np.array([0.0, *unit.T[1]]),
        gathered_bytes=np.zeros(4),
        activation_bytes=np.array([0.0, *unit.T[2]]),
        transient_bytes=np.array([0.0, *unit.T[3]]),
        parallel=parallel,
        precision=layout.precision,
        moments=problem.job.moments,
        device=problem.machine.device,
        ranks=np.asarray(problem.gpus),
        fully_shard=software.fully_shard,
        micro_batches=layout.micro_batches,
        footprint=software.footprint,
        offload=layout.offload,
    ).total
    base = float(found[0])
    states, saved, working = ((found[1:] - base) / GB).tolist()
    return base, states, saved, working


def _joined(stages: Sequence[Stage], ranks: Ranges, place: int) -> Stage:
    return Stage(
        layers=tuple(name for stage in stages for name in stage.layers),
        plans=tuple(plan for stage in stages for plan in stage.plans),
        mesh=replace(stages[0].mesh, ranks=ranks),
        held_by=(place,),
    )
