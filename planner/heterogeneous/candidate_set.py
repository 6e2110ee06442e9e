"""`Menu`: the options of stages for one number of micro-batches and order of places.

Options of several places (`stage_costs`) are joined in model order, with what is sent
between them: a micro-batch's activations to the next stage and back, and between the
pipeline's two ends the gradient of a table that they share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import ceil, inf, log
from typing import Final

import numpy as np

from costmodel.layout import Layout, Ranges, Stage
from costmodel.machine import Machine
from costmodel.stages import Sender, boundary, machines_of, sends, tied_sync
from planner.heterogeneous.bound import Bound, Late, never, spread_s
from planner.heterogeneous.candidates import Option, Stages, Ways
from planner.heterogeneous.partition import Part, Partition, partitions
from planner.heterogeneous.stage_costs import (
    Priced,
    joined,
    like,
    priced_at,
    shortened,
)
from planner.problem import Place, Problem, divisors, is_unlike, orders

LIKELY: Final = 32  # micro-batches: enough to fill a pipeline of a few stages
MOST_CUT: Final = 128  # layers that are cut one by one over islands
GROUPS: Final = 64  # of more: tables of stages take the square of the layers
ALIKE: Final = 2e-3  # of the step: costs of two ends that are not told apart


@dataclass(frozen=True, kw_only=True)
class Menu:
    """The options of stages for one number of micro-batches, each of whose layers are
    `group` neighbours; their step ends with `tied_s` or more in which its two ends sum
    a gradient."""

    problem: Problem
    micro_batches: int
    priced: tuple[Priced, ...]
    alike: tuple[int, ...]  # of each layer, as a stage, the one that it is like
    tied_s: float = 0.0
    group: int = 1

    @cached_property
    def options(self) -> list[Option]:
        return [one.option for one in self.priced]

    @cached_property
    def stages(self) -> Stages:
        return Stages(
            self.options, devices=self.problem.gpus, micro_batches=self.micro_batches
        )

    @property
    def end_s(self) -> float:
        """What is no stage's own at the end of a step."""
        return self.tied_s + self.problem.machine.step_s

    @cached_property
    def lower_s(self) -> float:
        """No pipeline of these stages takes less, whatever its cuts: every device is
        busy with what it holds, m times, and one micro-batch goes through all layers
        and back. A single stage counts a parameter that its ends share once.
        """
        options = [(one.place, one.option) for one in self.priced]
        places = list(dict.fromkeys(place for place, _ in options))
        works = [
            np.min([o.both_s * o.devices for at, o in options if at is place], axis=0)
            for place in places
        ]
        busy_s = spread_s(works, [one.devices for one in places])
        through_s = float(np.min([one.both_s for _, one in options], axis=0).sum())
        shared_s = max(float(one.shared_s.sum()) for _, one in options)
        m = self.micro_batches
        return max(m * busy_s, through_s) + self.end_s - m * shared_s

    def bound_s(
        self, at_most_s: float, late: Late = never
    ) -> tuple[float, list[Partition]]:
        """Seconds that no pipeline of these stages takes less than, as far as
        *at_most_s* (which is finite), looser once it is *late*; and partitions that are
        not known to take longer."""
        least_s = self.lower_s
        if least_s >= at_most_s or late():
            return least_s, []
        found_s, partitions = Bound(self.stages, self.tied_s).seconds(
            at_least_s=max(least_s - self.end_s, 0.0),
            at_most_s=at_most_s - self.end_s,
            number=self.problem.pins.pp,
            late=late,
        )
        return found_s + self.end_s, partitions

    def best(self, *, below_s: float = inf, tolerance: float = 0.0) -> list[Partition]:
        """Partitions whose steps the programme puts below *below_s*, those first that
        take least."""
        return partitions(
            self.stages,
            number=self.problem.pins.pp,
            tolerance=tolerance,
            below_s=below_s - self.end_s,
        )

    def layout(self, partition: Partition) -> Layout:
        """*partition* spelled out, its stages packed into domains."""
        parts = partition.parts
        stages = tuple(
            replace(stage, mesh=replace(stage.mesh, ranks=ranks), held_by=(place,))
            for place, (stage, ranks) in enumerate(
                zip(map(self._stage, parts), self._ranks(parts), strict=True)
            )
        )
        return replace(self.priced[parts[0].option].layout, stages=stages)

    def _stage(self, part: Part) -> Stage:
        """*part* with all of its layers, on some ranks."""
        first, end = part.first * self.group, (part.last + 1) * self.group
        layout, graph = self.priced[part.option].layout, self.problem.job.graph
        return joined(layout, graph, self.alike, first, end)

    def _ranks(self, parts: Sequence[Part]) -> Iterator[Ranges]:
        """The ranks of each stage."""
        for place, group in groupby(
            parts, key=lambda part: self.priced[part.option].place
        ):
            sizes = [self.options[part.option].devices for part in group]
            for size, start in zip(sizes, starts(sizes), strict=True):
                first = place.first_rank + start
                yield Ranges(((first, first + size - 1),))


def starts(sizes: Sequence[int]) -> list[int]:
    """The first device of stages of those *sizes* on an island: the larger ones first,
    so that none that is smaller than a fast domain lies in two, sizes being powers of
    two; those of one size in model order."""
    found, taken = [0] * len(sizes), 0
    for place in sorted(range(len(sizes)), key=lambda one: -sizes[one]):
        found[place] = taken
        taken += sizes[place]
    return found


def menus(problem: Problem) -> Iterator[Menu]:
    """Menus for each number of micro-batches, likely ones first, and order of places,
    priced when they are asked for: of several places, one for each tp of ends whose
    cost is apart."""
    size = group_size(problem)
    for m in sorted(_micro_batches(problem), key=lambda m: abs(log(m / LIKELY))):
        for menu in _of(problem, m):
            yield from _by_ends(_grouped(menu, size) if size > 1 else menu)


def lean_menus(problem: Problem) -> Iterator[Menu]:
    """The same of single layers with any ends, those first that need least memory: of
    the most micro-batches."""
    for m in sorted(_micro_batches(problem), reverse=True):
        yield from _of(problem, m)


def group_size(problem: Problem) -> int:
    """How many neighbouring layers are cut as one: 1 unless they are very many."""
    body = problem.job.graph.body
    return ceil(body / GROUPS) if is_unlike(problem) and body > MOST_CUT else 1


def _grouped(menu: Menu, size: int) -> Menu:
    """*menu* of groups of so many layers."""
    return replace(
        menu,
        priced=tuple(
            replace(one, option=one.option.of_groups(size)) for one in menu.priced
        ),
        group=size,
    )


def _micro_batches(problem: Problem) -> list[int]:
    pinned = problem.pins.micro_batches
    return [m for m in divisors(problem.job.global_batch) if pinned in (None, m)]


def _of(problem: Problem, m: int) -> Iterator[Menu]:
    """The menus of *m* micro-batches that have options; what stages cost at a place is
    the same in every order."""
    known: dict[int, list[Priced]] = {}
    short = shortened(problem)
    alike = like(problem.job.graph, short.job.graph)
    for places in orders(problem):
        priced: list[Priced] = []
        for before, place, after in zip(
            (None, *places[:-1]), places, (*places[1:], None), strict=True
        ):
            if place.first_rank not in known:
                posed = place.problem(short)
                known[place.first_rank] = priced_at(posed, m, place, alike)
            every = known[place.first_rank]
            ways = _ways([one.layout for one in every], problem, before, place, after)
            for one in every:
                way = ways[one.option.devices]
                option = replace(one.option, span=place.span, ways=way)
                priced.append(replace(one, option=option, place=place))
        if priced:
            yield Menu(
                problem=problem,
                micro_batches=m,
                priced=tuple(priced),
                alike=tuple(alike.tolist()),
            )


def _ways(
    layouts: Sequence[Layout],
    problem: Problem,
    before: Place | None,
    here: Place,
    after: Place | None,
) -> dict[int, Ways]:
    """By devices of a stage at a place the least that its sends take: there, to the
    place *after* it and from the one *before*."""
    near, domain = here.machine, here.machine.island.domain
    across = [one and _meeting(problem, here, one) for one in (after, before)]
    found: dict[int, Ways] = {}
    seen = set[object]()
    for layout in layouts:
        stage = layout.stages[0]
        key = stage.mesh, stage.plans[0].sharding  # recompute does not matter
        if key in seen:
            continue
        seen.add(key)
        size = stage.mesh.size
        ways = (
            _sent_s(layout, problem, near, far=size >= domain),
            *(_sent_s(layout, problem, on, far=True) if on else 0.0 for on in across),
        )
        known = found.get(size)
        least = (
            ways
            if known is None
            else map(min, ways, (known.sent_s, known.crossed_s, known.arrived_s))
        )
        found[size] = Ways(*least)
    return found


def _sent_s(layout: Layout, problem: Problem, where: Machine, *, far: bool) -> float:
    sender = Sender.of(layout, layout.stages[0])
    sent = boundary(problem.job, where, layout.precision, sender, far=np.asarray(far))
    return 2 * float(sends(sent.seconds, where).beside_s)


def _meeting(problem: Problem, one: Place, two: Place) -> Machine:
    """What stages at two places have in common, as `costmodel.stages.pipeline_p2p`
    sees it."""
    return machines_of(problem.machine, [one.ranks, two.ranks])[0]


def _by_ends(menu: Menu) -> Iterator[Menu]:
    """*menu*, or over several places one for each tp that its ends may have or exceed,
    with the least cost of summing the tied gradient in slices of that tp."""
    first, last = menu.priced[0].place, menu.priced[-1].place
    if first is last:
        yield menu
        return
    ends = [one for one in menu.priced if one.place in (first, last)]
    meshes = [one.layout.stages[0].mesh for one in ends]
    tps, sizes = (
        sorted({one.tp for one in meshes}),
        sorted({one.size for one in meshes}),
    )
    tied_s = tied_sync(
        menu.problem.job,
        _meeting(menu.problem, first, last),
        ends[0].layout.precision,
        tp=np.array(tps)[:, None],
        pp=np.array(2),
        stride=np.array(sizes),
        inside=np.array(False),
    ).seconds
    least_s = np.broadcast_to(tied_s, (len(tps), len(sizes))).min(axis=1)
    if np.ptp(least_s) <= ALIKE * menu.lower_s:
        yield replace(menu, tied_s=float(least_s.min()))
        return
    for tp, end_s in zip(tps, least_s.tolist(), strict=True):
        priced = tuple(
            replace(
                one,
                option=replace(
                    one.option,
                    starts=one.place is first and wide,
                    ends=one.place is last and wide,
                ),
            )
            for one in menu.priced
            for wide in [one.layout.stages[0].mesh.tp >= tp]
        )
        yield replace(menu, priced=priced, tied_s=end_s)
