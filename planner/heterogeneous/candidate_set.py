"""`Menu`: the options of stages for one number of micro-batches, and what no pipeline
of them goes below.

Options (`stage_options`) of several places are joined in model order, with what is sent
between them (`stage_links`).

Layers that are like others: a short model has all that there is to price.

What a layer costs as a stage of its own hangs on its kind, and at the model's two ends
on what else is there. So layers are left out before the last ones, until there are no
more than a node has devices (so many share its host): what they would cost, the layer
of their kind does that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from math import inf, isfinite, log
from typing import Final

import numpy as np

from costmodel.layout import Layout, Ranges, Stage
from planner.heterogeneous.bound import (
    CLOSE,
    Late,
    StagesHeld,
    busy_s,
    cut_bound_s,
    never,
    through_s,
    trip_bound_s,
)
from planner.heterogeneous.candidates import Option
from planner.heterogeneous.packing import starts
from planner.heterogeneous.partition import (
    Part,
    Partition,
    partitions,
    partitions_among,
)
from planner.heterogeneous.stage_costs import (
    Passes,
    Priced,
    group_size,
    grouped_option,
    grouped_passes,
    priced_at,
)
from planner.heterogeneous.stage_tree import Tree, Whole, path_s
from planner.heterogeneous.transfers import (
    Box,
    boxes,
    ends_s,
    lies_in,
    of_both,
    shape_of,
    together,
    with_links,
)
from planner.problem import Place, Problem, divisors, is_unlike, orders
from profiles.arrays import Array
from profiles.models import DecoderSpec, ModelGraph

ENDING: Final = 2  # stages at the end that may be unlike others: head, what is before


def shortened(problem: Problem) -> Problem:
    """*problem* of a model with as few layers as tell what all of them cost."""
    job, islands = problem.job, problem.machine.cluster.islands
    graph, spec = job.graph, job.spec
    if not graph.turn or not isinstance(spec, DecoderSpec):
        return problem
    leading = graph.runs[0][1] if len(graph.runs) == 2 else 0
    neighbours = max(island.devices_per_node for island in islands)
    least = max(leading + graph.turn + ENDING, neighbours)
    turns = (spec.layers - least) // graph.turn
    if turns <= 0:
        return problem
    fewer = replace(spec, layers=spec.layers - turns * graph.turn)
    return replace(problem, job=replace(job, spec=fewer))


def like(graph: ModelGraph, short: ModelGraph) -> Array:
    """Of each stage of a layer of *graph* the one of the *short* model that it is like.

    Those that are left out lie before its last two.
    """
    kept, left_out = short.body - ENDING, np.arange(graph.body - short.body)
    if not len(left_out):
        return np.arange(graph.body)
    turned = kept - graph.turn + left_out % graph.turn
    return np.concatenate([np.arange(kept), turned, np.arange(kept, short.body)])


def joined(
    layout: Layout, graph: ModelGraph, stages: Sequence[int], first: int, end: int
) -> Stage:
    """Stages *first* to *end* − 1 of *graph*, a layer each, as one; each of *stages*
    is the number of the one of *layout*, of the short model, that it is like."""
    alike = [layout.stages[number] for number in stages]
    start = sum(len(stage.layers) for stage in alike[:first])
    plans = tuple(plan for stage in alike[first:end] for plan in stage.plans)
    return replace(
        layout.stages[0],
        layers=graph.layer_names[start : start + len(plans)],
        plans=plans,
    )


LIKELY: Final = 32  # micro-batches: enough to fill a pipeline of a few stages
ROUGHLY: Final = 16  # larger meshes have more than such a part of all devices
SPELLED: Final = 24  # pipelines that are found at once


@dataclass(frozen=True, kw_only=True)
class Menu:
    """The options of stages for one number of micro-batches, each of whose layers are
    `group` neighbours; their step ends with `end_s` or more that are no stage's own,
    of which `ends_s` of its two ends."""

    problem: Problem
    micro_batches: int
    layouts: tuple[Layout, ...]  # of each option, a layer of a short model a stage
    alike: tuple[int, ...]  # of each layer, as a stage, the one that it is like
    options: tuple[Option, ...]
    passes: tuple[Passes, ...]  # of each option
    places: tuple[Place, ...]  # of each option
    end_s: float
    ends_s: Mapping[Box, float] = field(default_factory=dict)
    around: Menu | None = None  # of the same stages, with any ends
    group: int = 1

    @property
    def lower_s(self) -> float:
        """No pipeline of these stages takes less, whatever its cuts: every device is
        busy with what it holds, m times, and one micro-batch goes through all layers
        and back. A single stage counts a parameter that its ends share once.
        """
        if not self.options:
            return float("inf")
        alone = len(set(self.places)) == 1
        shared_s = max(one.shared_backward_s for one in self.passes) if alone else 0.0
        twice_s = self.micro_batches * shared_s
        return max(self._busy_s, through_s(self.passes)) - twice_s + self.end_s

    @property
    def guess_s(self) -> float:
        """What the best of these stages may take, if nothing waits: in what order menus
        are looked at."""
        return self._busy_s + through_s(self.passes) + self.end_s

    @property
    def _busy_s(self) -> float:
        return self.micro_batches * busy_s(self.options, self.passes, self.places)

    def tighter_s(self, at_most_s: float, late: Late = never) -> float:
        """The same, as far as *at_most_s* (which is finite), of stages that are whole
        layers on whole meshes and hold what they must; looser once it is *late*."""
        least_s = self.lower_s
        if least_s >= at_most_s:
            return least_s
        return self._bound_s(least_s, at_most_s, late)

    def may_beat(self, seconds: float) -> bool:
        """Whether `tighter_s` is below *seconds*, without saying by how much."""
        if self.lower_s >= seconds or seconds == inf:
            return self.lower_s < seconds
        return self._bound_s(seconds * (1 - CLOSE), seconds) < seconds

    def _bound_s(self, from_s: float, at_most_s: float, late: Late = never) -> float:
        at_least_s, at_most_s = max(from_s - self.end_s, 0.0), at_most_s - self.end_s
        if len(set(self.places)) > 1:
            bound_s = trip_bound_s(
                self._held, at_least_s=at_least_s, at_most_s=at_most_s, late=late
            )
        else:
            bound_s = cut_bound_s(
                self.options,
                self.passes,
                devices=self.problem.gpus,
                micro_batches=self.micro_batches,
                at_least_s=at_least_s,
                at_most_s=at_most_s,
                late=late,
            )
        return bound_s + self.end_s

    @cached_property
    def _held(self) -> StagesHeld:
        return StagesHeld(
            self.options,
            self.passes,
            devices=self.problem.gpus,
            micro_batches=self.micro_batches,
            tied_s=self.end_s - self.problem.machine.step_s,
        )

    def best(self, *, below_s: float = inf, tolerance: float = 0.0) -> list[Partition]:
        """Partitions whose steps the programme puts below *below_s*, those first that
        take least; some of them as if pipelines stayed in a domain of their island:
        where they leave it, it knows at the least, not well."""
        ways = [self.options]
        if any(option.ways.far_s for option in self.options):
            ways.append(tuple(_staying(one) for one in self.options))
        found = [
            partition
            for options in ways
            for partition in partitions(
                options,
                devices=self.problem.gpus,
                micro_batches=self.micro_batches,
                stages=self.problem.pins.pp,
                tolerance=tolerance,
                below_s=below_s - self.end_s,
            )
        ]
        distinct = {partition.parts: partition for partition in found}
        return sorted(distinct.values(), key=self.path_s)

    def roughly(self, tolerance: float, below_s: float = inf) -> list[Partition]:
        """The same of the larger meshes alone, so that there are few to a pipeline."""
        least = self.problem.gpus // ROUGHLY
        found = partitions_among(
            [one if one.devices >= least else None for one in self.options],
            devices=self.problem.gpus,
            micro_batches=self.micro_batches,
            stages=self.problem.pins.pp,
            tolerance=tolerance,
            below_s=below_s - self.end_s,
        )
        return sorted(found, key=self.path_s)

    def path_s(self, partition: Partition) -> float:
        """What a step of *partition* takes at the least."""
        ending_s = self.ending_s(partition)
        taken_s = path_s(
            partition.parts,
            self.options,
            self.passes,
            self.micro_batches,
            tied_s=ending_s - self.problem.machine.step_s,
        )
        return taken_s + ending_s

    def ending_s(self, partition: Partition) -> float:
        """What is no stage's own at the end of a step of *partition*."""
        ends = partition.parts[0], partition.parts[-1]
        box = of_both(*(shape_of(self.layouts[part.option]) for part in ends))
        return self.problem.machine.step_s + self.ends_s.get(box, 0.0)

    def layout(self, partition: Partition) -> Layout:
        """*partition* spelled out, its stages packed into domains."""
        parts = partition.parts
        ranks = self._ranks(parts)
        stages = tuple(
            replace(stage, mesh=replace(stage.mesh, ranks=here), held_by=(place,))
            for place, (stage, here) in enumerate(
                zip(map(self._stage, parts), ranks, strict=True)
            )
        )
        plain = self.layouts[parts[0].option]
        return replace(plain, stages=stages)

    def _stage(self, part: Part) -> Stage:
        """*part* with all of its layers, on some ranks."""
        first, end = part.first * self.group, (part.last + 1) * self.group
        layout, graph = self.layouts[part.option], self.problem.job.graph
        return joined(layout, graph, self.alike, first, end)

    def _ranks(self, parts: Sequence[Part]) -> Iterator[Ranges]:
        """The ranks of each stage."""
        for place, group in groupby(parts, key=lambda part: self.places[part.option]):
            sizes = [self.options[part.option].devices for part in group]
            domain = place.machine.island.domain
            for size, start in zip(
                sizes, starts(sizes, domain, place.devices), strict=True
            ):
                first = place.first_rank + start
                yield Ranges(((first, first + size - 1),))

    @property
    def knows_ways(self) -> bool:
        """Whether the options say what is sent between them: over several places."""
        return self.places[0].span is not None

    def grown(
        self, below_s: float, width: int, between: Callable[[], None] = lambda: None
    ) -> tuple[list[Partition], float]:
        """Partitions that may take less than *below_s*, the best first, and what none
        takes less than; with so many suffixes of each number of stages at most.
        *between* is called again and again, and may raise."""
        found = Tree(held=self._held).grown(
            below_s - self.end_s,
            width=width,
            stages=self.problem.pins.pp,
            best=SPELLED,
            between=between,
        )
        unit = self._held.unit
        spelled = (self._spelled(one, unit) for one in found.best)
        return [one for one in spelled if one], found.lower_s + self.end_s

    def _spelled(self, whole: Whole, unit: int) -> Partition | None:
        """*whole* with the fastest option of each kind that fits; None where there is
        none."""
        parts, ends = [], [*(first - 1 for first in whole.firsts[1:]), -1]
        layers = len(self.passes[0].forward_s)
        for place, (first, end, kind) in enumerate(
            zip(whole.firsts, ends, whole.kinds, strict=True)
        ):
            last = end % layers
            in_flight = min(len(ends) - place, self.micro_batches)
            found = [
                (float(passes.both_s[first : last + 1].sum()), number)
                for number, (option, passes) in enumerate(
                    zip(self.options, self.passes, strict=True)
                )
                if option.kind(self.problem.gpus, unit) == kind
                and isfinite(option.stages_s()[first, last])
                and option.stages_bytes(in_flight)[first, last] <= option.capacity_bytes
            ]
            if not found:
                return None
            parts.append(Part(first=first, last=last, option=min(found)[1]))
        return Partition(parts=tuple(parts), seconds=whole.seconds)


def menus(problem: Problem) -> Iterator[Menu]:
    """Menus for each number of micro-batches, likely ones first, and order of places,
    priced when they are asked for: of several places, one for each cost of ends that
    are apart."""
    every = _micro_batches(problem)
    size = group_size(problem.job.graph.body) if is_unlike(problem) else 1
    for m in sorted(every, key=lambda m: abs(log(m / LIKELY))):
        for menu in _of(problem, m):
            yield from _by_ends(_grouped(menu, size) if size > 1 else menu)


def _grouped(menu: Menu, size: int) -> Menu:
    """*menu* of groups of so many layers."""
    return replace(
        menu,
        options=tuple(grouped_option(one, size) for one in menu.options),
        passes=tuple(grouped_passes(one, size) for one in menu.passes),
        group=size,
    )


def lean_menus(problem: Problem) -> Iterator[Menu]:
    """The same of single layers with any ends, those first that need least memory: of
    the most micro-batches."""
    for m in sorted(_micro_batches(problem), reverse=True):
        yield from (menu for menu in _of(problem, m) if menu.options)


def _micro_batches(problem: Problem) -> list[int]:
    pinned = problem.pins.micro_batches
    return [m for m in divisors(problem.job.global_batch) if pinned in (None, m)]


def _of(problem: Problem, m: int) -> Iterator[Menu]:
    known: dict[int, list[Priced]] = {}
    for places in orders(problem):
        yield _menu(problem, m, places, known)


def _menu(
    problem: Problem, m: int, places: Sequence[Place], known: dict[int, list[Priced]]
) -> Menu:
    """The menu of *places* in that order; what stages cost at each of them is *known*
    by its first rank, and the same in every order."""
    short = shortened(problem)
    alike = like(problem.job.graph, short.job.graph)
    for place in places:
        if place.first_rank not in known:
            known[place.first_rank] = priced_at(place.problem(short), m, place, alike)
    every = [
        one
        for number, place in enumerate(places)
        for one in _linked(
            [
                (layout, replace(option, span=place.span), passes, place)
                for layout, option, passes, _ in known[place.first_rank]
            ],
            problem,
            [None, *places, None][number : number + 3],
        )
    ]
    return Menu(
        problem=problem,
        micro_batches=m,
        layouts=tuple(layout for layout, _, _, _ in every),
        alike=tuple(alike.tolist()),
        options=tuple(option for _, option, _, _ in every),
        passes=tuple(passes for _, _, passes, _ in every),
        places=tuple(place for _, _, _, place in every),
        end_s=problem.machine.step_s,
    )


def _linked(
    priced: list[Priced], problem: Problem, places: Sequence[Place | None]
) -> list[Priced]:
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
        (layout, option, passes, place)
        for option, (layout, _, passes, place) in zip(options, priced, strict=True)
    ]


def _by_ends(menu: Menu) -> Iterator[Menu]:
    """*menu*, or one for each cost of summing the tied gradient between the pipeline's
    two ends."""
    places = sorted(set(menu.places), key=lambda place: place.span or (0, 0))
    if len(places) < 2:
        yield menu
        return
    first, last = places[0], places[-1]
    shapes = [shape_of(layout) for layout in menu.layouts]
    at_ends = [
        {
            shape
            for shape, place in zip(shapes, menu.places, strict=True)
            if place is end
        }
        for end in (first, last)
    ]
    pairs = boxes(*at_ends)
    if not pairs:
        return
    costs = ends_s(pairs, menu.layouts[0], menu.problem, first, last)
    menu = replace(menu, ends_s=dict(zip(pairs, costs, strict=True)))
    for several, end_s in together(menu.ends_s, CLOSE * menu.lower_s):
        inside = [lies_in(shape, several) for shape in shapes]
        options = tuple(
            replace(
                option,
                starts=place is first and within,
                ends=place is last and within,
            )
            for option, place, within in zip(
                menu.options, menu.places, inside, strict=True
            )
        )
        yield replace(menu, end_s=menu.end_s + end_s, options=options, around=menu)


def _staying(option: Option) -> Option:
    """*option*, its pipelines as near to all devices of their island."""
    return replace(option, ways=replace(option.ways, far_s=0.0))
