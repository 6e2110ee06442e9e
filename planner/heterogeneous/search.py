"""Stages that differ in mesh: what they gain over the best layout of alike stages.

    for each number of micro-batches and order of islands
        menu         what each layer costs on each mesh            → candidate_set
        bound        what no pipeline of it takes less than        → bound
        partitions   layers → stages → meshes, where that is below → partition
        simulation   of the best of them, and of those that the bound did not rule out
    then             cuts of the best moved layer by layer

(Zheng et al., OSDI 2022.) The least bound of all menus is the certificate of the wider
space. Where memory is the objective, the leanest partition of each menu stands for both
(`min_memory`). Where no layout is known to begin with and time is limited, the leanest
stages are found first, so that there is an answer whenever it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, product
from math import inf
from operator import itemgetter
from typing import Final

import numpy as np

from costmodel.layout import Layout, Uniform
from planner.heterogeneous.bound import root_bound_s
from planner.heterogeneous.candidate_set import Menu, group_size, lean_menus, menus
from planner.heterogeneous.candidates import Option
from planner.heterogeneous.homogenized import by_other_schedules, over_islands
from planner.heterogeneous.min_memory import fitting, leanest
from planner.heterogeneous.partition import Partition
from planner.problem import (
    EXACT,
    Candidate,
    Counters,
    Found,
    Objective,
    Problem,
    Solution,
    Staged,
    Status,
    Wider,
    hopeless_by_states,
    is_unlike,
    only_unlike,
    simulate,
    states_fit,
)
from planner.search import BranchAndBound, Clock, Limits
from profiles.errors import Contradiction, MeshwrightError, Unsupported

PRICING: Final = 0.4  # of the time there is, at most, before menus are opened
TOLERANCE: Final = 0.01  # slowest stages closer than that are tried once
JUDGED: Final = 16  # partitions of a menu that are simulated
CLIMBED: Final = 3  # of the best, on different meshes
FARTHEST: Final = 2  # stages over which a layer is moved
HIDDEN: Final = 0.03  # what the simulation may find faster than the programme


def stages_of_any(
    problem: Problem,
    beside: Uniform,
    value: float,
    clock: Clock,
    *,
    alone: bool = False,
) -> Found:
    """Layouts of any stages that fit, of what may be better than *value*; one at least
    where they are *alone* and there is one, whatever the time."""
    hunt = _Hunt(problem=problem, beside=beside, value=value, clock=clock, alone=alone)
    every, priced = hunt.priced()
    any_cut_s = min((menu.lower_s for menu in every), default=inf)
    if not priced:
        any_cut_s = root_bound_s(problem)  # all that is known of the others
    in_bytes = problem.objective is Objective.MEMORY
    look = hunt.lean if in_bytes else hunt.fast
    bounds = [look(menu) for menu in every]
    if not in_bytes:
        hunt.climb()
    complete = priced and not clock.over
    lower = min((*bounds, hunt.value))
    if not priced or (in_bytes and not complete):
        lower = 0.0 if in_bytes else min(lower, any_cut_s * hunt.unit)
    return Found(
        candidates=tuple(sorted(hunt.found.values(), key=problem.value)),
        partitions=hunt.tried,
        simulated=hunt.simulated,
        lower=lower,
        lower_s=any_cut_s if in_bytes else lower / hunt.unit,
        complete=complete,
        any_cut_s=any_cut_s,
    )


@dataclass(kw_only=True)
class _Hunt:
    """The best value so far, and what was found on the way to it."""

    problem: Problem
    beside: Uniform
    value: float
    clock: Clock
    alone: bool
    found: dict[Layout, Staged] = field(default_factory=dict)
    best: dict[object, tuple[float, Menu, Partition]] = field(default_factory=dict)
    tried: int = 0
    simulated: int = 0

    @property
    def unit(self) -> float:
        """The value of a second."""
        return float(self.problem.value_of(1.0, 1.0))

    @property
    def late(self) -> bool:
        """Whether time is over, and there is an answer if there has to be one."""
        return self.clock.over and (self.value < inf or not self.alone)

    def priced(self) -> tuple[list[Menu], bool]:
        """The menus that have options, likely ones first; and whether all are there,
        which time may end."""
        if self.alone and self.clock.limits.time_limit_s < inf:
            soon = any_fits(self.problem)
            if soon is not None:
                self.tried = self.simulated = 1
                self.found[soon.estimate.layout] = soon
                self.value = self.problem.value(soon)
        found, complete = list[Menu](), True
        for menu in menus(self.problem):
            found.append(menu)
            if self.clock.share >= PRICING and (self.value < inf or not self.alone):
                complete = False
                break
        return sorted(found, key=lambda menu: menu.lower_s), complete

    def fast(self, menu: Menu) -> float:
        """Judge the best partitions of *menu*; what none of it is worth less than."""
        lower_s, limit_s = menu.lower_s, self.value / self.unit
        if limit_s == inf:
            self.judge_best(menu, menu.best(tolerance=TOLERANCE))
            limit_s = self.value / self.unit
        if limit_s < inf:
            lower_s, likely = menu.bound_s(limit_s, lambda: self.late)
            if lower_s < limit_s and not self.late:
                self.judge_best(menu, likely)
                below_s = limit_s * (1 + HIDDEN)
                self.judge_best(menu, menu.best(tolerance=TOLERANCE, below_s=below_s))
        return lower_s * self.unit

    def judge_best(self, menu: Menu, some: Sequence[Partition]) -> None:
        """Those of *some* that take least; and cuts of them which the programme, that
        counts a step's slowest stage alone, does not tell apart."""
        for one in sorted(some, key=lambda one: one.seconds)[:JUDGED]:
            self.judge(menu, list({one: 0, **dict.fromkeys(packed(one, menu.options))}))

    def lean(self, menu: Menu) -> float:
        """Judge the leanest partition of *menu*; the bytes that none of it goes below,
        of what is below the best value."""
        if self.late:
            return 0.0
        found = leanest(
            menu.stages,
            below_bytes=self.value,
            number=self.problem.pins.pp,
            late=lambda: self.late,
        )
        if found is None:
            self.tried += 1  # its leanest
            return self.value
        self.judge(menu, [found.partition])
        return found.peak_bytes

    def judge(self, menu: Menu, some: Sequence[Partition]) -> float:
        """The least value of *some*; infinite where none fits."""
        self.tried += len(some)
        least = inf
        for partition in some:
            if self.late:
                break
            layout = menu.layout(partition)
            if layout not in self.found:
                self.simulated += 1
                candidate = simulate(self.problem, self.beside, layout)
                if candidate is None:
                    continue
                self.found[layout] = candidate
            worth = self.problem.value(self.found[layout])
            least, self.value = min(least, worth), min(self.value, worth)
            meshes = tuple(stage.mesh for stage in layout.stages)
            if meshes not in self.best or worth < self.best[meshes][0]:
                self.best[meshes] = worth, menu, partition
        return least

    def climb(self) -> None:
        """Move layers between stages of the best few, while that helps."""
        best = sorted(self.best.values(), key=itemgetter(0))
        for worth, menu, start in best[:CLIMBED]:

            def judge(one: Partition, menu: Menu = menu) -> float:
                return self.judge(menu, [one])

            for _ in climbed(start, worth, judge):
                pass


def climbed(
    start: Partition, value: float, judge: Callable[[Partition], float]
) -> Iterator[Partition]:
    """Partitions from *start* on, which has that *value*, each better than the last; by
    *judge*, which says infinity of what is not to be had."""
    known = {start.parts}
    better: Partition | None = start
    while better is not None:
        near = [one for one in moved(better) if one.parts not in known]
        better = None
        for one in near:
            known.add(one.parts)
            if (found := judge(one)) < value:
                better, value = one, found
                yield one
                break


def moved(partition: Partition) -> Iterator[Partition]:
    """*partition* with a layer moved from a stage to the next one or the next but one,
    either way; no stage goes empty."""
    parts = partition.parts
    sizes = [part.last - part.first + 1 for part in parts]
    for one, two in product(range(len(parts)), repeat=2):
        if not 0 < abs(one - two) <= FARTHEST or sizes[one] == 1:
            continue
        step = {one: -1, two: 1}
        ends = accumulate(size + step.get(i, 0) for i, size in enumerate(sizes))
        cuts = pairwise((0, *ends))
        found = (
            replace(part, first=first, last=end - 1)
            for part, (first, end) in zip(parts, cuts, strict=True)
        )
        yield replace(partition, parts=tuple(found))


def packed(partition: Partition, options: Sequence[Option]) -> Iterator[Partition]:
    """*partition* with its first stages as long as its slowest one allows, and with its
    last ones; where no stage goes empty by that."""
    parts = partition.parts
    own_s = [options[part.option].seconds for part in parts]
    spans = [(part.first, part.last + 1) for part in parts]
    slowest_s = max(
        float(each[first:end].sum())
        for each, (first, end) in zip(own_s, spans, strict=True)
    )
    most_s, layers = slowest_s * (1 + EXACT), parts[-1].last + 1
    for backward in (False, True):
        turned = [each[::-1] for each in reversed(own_s)] if backward else own_s
        ends = [0]
        for left, each in zip(range(len(parts) - 1, -1, -1), turned, strict=True):
            some = np.cumsum(each[ends[-1] : layers - left]) <= most_s
            ends.append(ends[-1] + int(some.sum()))
        if ends[-1] != layers or len(set(ends)) != len(ends):
            continue
        if backward:
            ends = [layers - end for end in reversed(ends)]
        yield replace(
            partition,
            parts=tuple(
                replace(part, first=first, last=end - 1)
                for part, (first, end) in zip(parts, pairwise(ends), strict=True)
            ),
        )


SHARE: Final = 0.3  # of the time, for alike stages over islands
# Simulations of them: nothing is proven by more, and bounds of slow links are loose.
ALIKE: Final = 100


def widened(problem: Problem, solution: Solution, limits: Limits) -> Solution:
    """*solution*, or a layout of unlike stages that is better, with the bound of both;
    as it is where no layout of alike stages fits.

    Raises Unsupported where stages cannot differ: what `execute` carries out, another
    schedule than 1F1B.
    """
    require_possible(problem)
    clock = Clock(limits=limits)
    if solution.best is None or solution.only_unlike:
        return solution
    found = stages_of_any(problem, solution.best.choice, solution.value, clock)
    found = _of_its_parts(problem, found, solution.best.choice, solution.value, clock)
    best, value = solution.best, solution.value
    if found.candidates and problem.value(found.candidates[0]) < value:
        best = found.candidates[0]
        value = problem.value(best)
    known = min(solution.lower, found.lower)
    proven = found.complete and known >= value * (1 - EXACT)
    return replace(
        solution,
        best=best,
        value=value,
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        lower=min(known, value),
        lower_step_time_s=min(solution.lower_step_time_s, found.lower_s),
        complete=solution.complete and found.complete,
        seconds=solution.seconds + clock.seconds,
        wider=Wider(
            partitions=found.partitions,
            simulated=found.simulated,
            lower=found.lower,
            alike=solution,
        ),
    )


def _of_its_parts(
    problem: Problem, found: Found, beside: Uniform, value: float, clock: Clock
) -> Found:
    """*found*, or what is found with the micro-batches and dp of its best: among fewer
    meshes the programme's likely ones are others, and pins would bring them to
    light."""
    value_of, pins = problem.value, problem.pins
    first = found.candidates[0] if found.candidates else None
    if first is None or value_of(first) >= value:
        return found
    layout = first.estimate.layout
    widths = {stage.mesh.dp for stage in layout.stages}
    dp = widths.pop() if len(widths) == 1 else pins.dp
    parts = replace(pins, micro_batches=layout.micro_batches, dp=dp)
    if parts == pins or problem.objective is Objective.MEMORY or clock.over:
        return found
    own = problem.repinned(parts)
    more = stages_of_any(own, beside, value, clock)
    return replace(
        found,
        candidates=tuple(sorted((*found.candidates, *more.candidates), key=value_of)),
        partitions=found.partitions + more.partitions,
        simulated=found.simulated + more.simulated,
        lower=min(found.lower, *map(value_of, more.candidates[:1])),
    )


def stages_alone(problem: Problem, limits: Limits) -> Solution:
    """The best layout of stages of any mesh, each of them inside one island, where
    there are no alike ones to begin with; or of alike ones over all islands where
    those are better: the bound does not speak of them.

    Raises as `require_possible`, and OutOfTime if time passed before any fitted.
    """
    require_possible(problem)
    clock = Clock(limits=limits)
    name = "islands" if is_unlike(problem) else "any-stage"
    if not states_fit(problem):
        return hopeless_by_states(name, clock.seconds, only_unlike=True)
    alone = Uniform(precision=problem.precision, offload=problem.offload)
    # By cuts between any layers, where those are too many for the others.
    deep = any_fits(problem) if group_size(problem) > 1 else None
    alike = [*_alike(problem, limits), *([deep] if deep else [])]
    best = min(alike, key=problem.value, default=None)
    value = inf if best is None else problem.value(best)
    found = stages_of_any(problem, alone, value, clock, alone=best is None)
    if best is None and not found.candidates and not found.complete:
        raise clock.out_of_time(found.partitions)
    if not is_unlike(problem):
        found = _of_its_parts(problem, found, alone, value, clock)
    proven = False
    if found.candidates and problem.value(found.candidates[0]) < value:
        best = found.candidates[0]
        value = problem.value(best)
        proven = found.complete and found.lower >= value * (1 - EXACT)
    lower, lower_s = found.lower, found.lower_s
    if best is not None and best is deep:  # cut where groups of layers are not
        lower_s = min(lower_s, found.any_cut_s)
        in_bytes = problem.objective is Objective.MEMORY  # of which nothing is known
        least = 0.0 if in_bytes else lower_s * float(problem.value_of(1.0, 1.0))
        lower = min(lower, least)
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    left_out = found.partitions - found.simulated
    others = sorted((*alike, *found.candidates), key=problem.value)
    return Solution(
        search=name,
        status=Status.INFEASIBLE if best is None else status,
        best=best,
        value=value,
        lower=min(lower, value),
        lower_step_time_s=lower_s,
        complete=found.complete,
        counters=Counters(
            considered=found.partitions, simulated=found.simulated, by_value=left_out
        ),
        seconds=clock.seconds,
        runners_up=_distinct(others, best)[: limits.runners_up],
        only_unlike=True,
    )


def _alike(problem: Problem, limits: Limits) -> list[Candidate]:
    """The best of alike stages over islands, of any schedule, and its runners-up."""
    if not is_unlike(problem):
        return []
    part = replace(limits, time_limit_s=SHARE * limits.time_limit_s)
    search = BranchAndBound(most=ALIKE)
    try:
        found = over_islands(problem, search, part)
    except MeshwrightError:  # nothing in time, or nothing that is legal
        known = []
    else:
        known = [found.best, *found.runners_up] if found.best else []
    if problem.pins.schedule is None and problem.objective is not Objective.MEMORY:
        known += by_other_schedules(problem, search, part)
    return known


def _distinct(
    candidates: Sequence[Candidate], best: Candidate | None
) -> tuple[Candidate, ...]:
    """Of those that differ from the *best* one, and in more than cuts or retention, the
    first."""
    found: dict[object, Candidate] = {}
    for one in (*([best] if best else []), *candidates):
        layout = one.estimate.layout
        ways = layout.schedule, layout.virtual_stages, layout.micro_batches
        found.setdefault((ways, tuple(stage.mesh for stage in layout.stages)), one)
    return tuple(found.values())[1:]


def require_possible(problem: Problem) -> None:
    """Raise Unsupported or Contradiction where stages cannot differ."""
    if problem.executable:
        raise Unsupported(
            "heterogeneous stages: `execute` runs stages of one mesh "
            "alone; add --any-mechanism, or leave --any-stage out"
        )
    if not problem.offers("stages", "unlike"):
        instead = "leave --any-stage out"
        if is_unlike(problem):
            instead = "choose --search megatron, which plans for the slowest device"
        raise Unsupported(
            f"heterogeneous stages: {problem.runs_on} has one mesh for all "
            f"stages; {instead}, or add --any-mechanism"
        )
    what = "a heterogeneous cluster" if is_unlike(problem) else "--any-stage"
    if problem.machine.turns > 1:
        raise Unsupported(
            f"{what} on more ranks than the profiled machine has cores: the price of a "
            "stage depends on which other ranks compute; ask for at most as many as it "
            "has, or leave --any-stage out"
        )
    wrong = alike_alone(problem)
    if wrong and only_unlike(problem):
        raise Contradiction(
            f"{what} with {', '.join(wrong)}: its stages run 1F1B, of any size; "
            "leave one of them out"
        )


def alike_alone(problem: Problem) -> list[str]:
    """The pins, and what of the model, that stages of unlike meshes cannot keep."""
    pins, wrong = problem.pins, []
    if pins.virtual_stages not in (None, 1):
        wrong.append(f"--virtual-stages {pins.virtual_stages}")
    if pins.schedule not in (None, "1f1b"):
        wrong.append(f"--schedule {pins.schedule}")
    wrong += [
        f"--{name}"
        for name, given in (
            ("recompute-layers", pins.recompute_layers),
            ("stage-layers", pins.stage_layers),
            ("first-stage-layers", pins.first_stage_layers),
            ("last-stage-layers", pins.last_stage_layers),
        )
        if given is not None
    ]
    if not problem.job.graph.is_chain:
        wrong.append(f"layers of {problem.job.model} that share weights or skip others")
    return wrong


def any_fits(problem: Problem, clock: Clock | None = None) -> Staged | None:
    """A layout of stages of any mesh that fits, if there is one by what stages seem to
    need, as many as fit or the leanest; the most micro-batches first, as long as there
    is time by the *clock*.

    Raises as `require_possible`.
    """
    require_possible(problem)
    if not states_fit(problem):
        return None
    alone = Uniform(precision=problem.precision, offload=problem.offload)
    for menu in lean_menus(problem):
        for find in (fitting, leanest):
            if clock is not None and clock.over:
                return None
            lean = find(menu.stages, number=problem.pins.pp)
            if lean is None:
                break
            found = simulate(problem, alone, menu.layout(lean.partition))
            if found is not None:
                return found
    return None
