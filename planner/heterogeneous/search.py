"""Stages that differ in mesh: what they gain over the best layout of alike stages.

    for each number of micro-batches
        menu         what each layer costs on each mesh               → stage_menu
        search       layers → stages → meshes, the best simulated     → stage_search

(Zheng et al., OSDI 2022.) The least bound of all menus is the certificate of the wider
space.

Cuts between stages moved by a layer, for as long as that helps.

The programme adds up what the simulation partly hides (a transfer behind a pass, a turn
at a slow link behind another), so that the best partition is near what it proposes, not
always among it. A climb over neighbours, the first better one taken: each cut, a layer
to either side.

The search for the best stages of any mesh: menus by their bounds, partitions by what
they take, the simulation last.

    over several islands   all pipelines that may be fast enough   → stage_tree
    on one                 the programme's partitions              → stage_partition
    then                   cuts of the best moved layer by layer   → stage_cuts

A menu whose bound is not below the best value is passed over. Over several islands the
tree is narrow first, to find what is good, and wide then, to prove that none is better.
Where no layout is known to begin with, a rough partition is found while menus are
priced, and then of the likely menus one of large meshes; and if time is limited the
leanest stages are, before anything else, so that there is an answer whenever it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import inf, log
from typing import Final

from costmodel.layout import Layout, Uniform
from planner.heterogeneous.bound import root_bound_s
from planner.heterogeneous.candidate_set import Menu, lean_menus, menus
from planner.heterogeneous.homogenized import by_other_schedules, over_islands
from planner.heterogeneous.lean_search import leanest_of_any
from planner.heterogeneous.lean_stages import Cuts
from planner.heterogeneous.partition import Partition
from planner.heterogeneous.stage_costs import group_size
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
from profiles.errors import Contradiction, MeshwrightError, OutOfTime, Unsupported


def climbed(
    start: Partition, value: float, judge: Callable[[Partition], float]
) -> Iterator[Partition]:
    """Partitions from *start* on, which has that *value*, each better than the last; by
    *judge*, which says infinity of what is not to be had."""
    here, known = start, {start.parts}
    while True:
        for near in moved(here):
            if near.parts in known:
                continue
            known.add(near.parts)
            found = judge(near)
            if found < value:
                here, value = near, found
                yield here
                break
        else:
            return


def moved(partition: Partition) -> Iterator[Partition]:
    """*partition* with one cut a layer further, either way; no stage goes empty."""
    parts = partition.parts
    for place, (before, after) in enumerate(pairwise(parts)):
        for last in (before.last - 1, before.last + 1):
            if before.first <= last < after.last:
                pair = replace(before, last=last), replace(after, first=last + 1)
                yield replace(
                    partition, parts=(*parts[:place], *pair, *parts[place + 2 :])
                )


PRICING: Final = 0.4  # of the time there is, at most, before menus are opened
ROUGH: Final = 0.1  # of the first partition that fits
TOLERANCE: Final = 0.01  # slowest stages closer than that are tried once
PATIENCE: Final = 6  # menus without a better rough partition
ROUGHLY_JUDGED: Final = 2  # of a menu
JUDGED: Final = 24  # partitions of a menu that are simulated
HIDDEN: Final = 0.03  # what the simulation may find faster than the programme
NARROW: Final = 1_000  # suffixes of a number of stages, to find a good partition
WIDER: Final = (4_000, 20_000, 200_000)  # to prove that there is none better


def stages_of_any(
    problem: Problem,
    beside: Uniform,
    value: float,
    clock: Clock,
    *,
    alone: bool = False,
    anything: Callable[[Problem], Staged | None] | None = None,
) -> Found:
    """Layouts of any stages that fit, of what may be better than *value*; one at least
    where they are *alone* and there is one, whatever the time: *anything* finds it
    soon."""
    hunt = _Hunt(problem=problem, beside=beside, value=value, clock=clock)
    if alone and clock.limits.time_limit_s < inf and anything is not None:
        hunt.begin(anything(problem))
    left, all_priced = hunt.priced(alone)
    any_cut_s = min((menu.lower_s for menu in left), default=inf)
    if not all_priced:
        any_cut_s = root_bound_s(problem)  # all that is known of the others
    hunt.begin_with(left)
    opened = list[tuple[float, Menu]]()
    while left and not clock.over:
        menu = left.popleft()  # with its tables, which go when it is done
        if menu.may_beat(hunt.value_s):
            opened.append((hunt.open(menu), replace(menu)))  # keeps no tables
    hunt.climb()
    lower_s = hunt.lower_s(left, hunt.proven_s(opened))
    if not all_priced:
        lower_s = min(lower_s, any_cut_s)
    return Found(
        candidates=tuple(sorted(hunt.found.values(), key=problem.value)),
        partitions=hunt.tried,
        simulated=hunt.simulated,
        lower=lower_s * hunt.unit,
        lower_s=lower_s,
        complete=all_priced and not left and not clock.over,
        any_cut_s=any_cut_s,
    )


@dataclass(kw_only=True)
class _Hunt:
    """The best value so far, and what was found on the way to it."""

    problem: Problem
    beside: Uniform
    value: float
    clock: Clock
    found: dict[Layout, Staged] = field(default_factory=dict)
    best: tuple[Menu, Partition] | None = None
    tried: int = 0
    simulated: int = 0

    @property
    def unit(self) -> float:
        """The value of a second."""
        return float(self.problem.value_of(1.0, 1.0))

    def late(self) -> bool:
        return self.clock.over

    @property
    def value_s(self) -> float:
        return self.value / self.unit

    def priced(self, alone: bool) -> tuple[deque[Menu], bool]:
        """The menus that have options, by their bounds; and whether all are there: time
        may end it, but where stages are *alone*, only once some are found that fit."""
        found, tried, complete = list[Menu](), set[int](), True
        for menu in menus(self.problem):
            if not menu.options:
                continue
            found.append(menu)
            around = menu.around or menu
            sought = alone and self.best is None
            soon = self.clock.share >= PRICING and self.value < inf
            if sought and not soon and id(around) not in tried:
                tried.add(id(around))
                self.seed(around)
            if self.clock.share >= PRICING and (self.value < inf or not alone):
                complete = False
                break
        return deque(sorted(found, key=lambda menu: menu.guess_s)), complete

    def begin(self, candidate: Staged | None) -> None:
        """With stages that fit, which are no menu's."""
        if candidate is not None and self.problem.value(candidate) < self.value:
            self.tried += 1
            self.simulated += 1
            self.found[candidate.estimate.layout] = candidate
            self.value = self.problem.value(candidate)

    def seed(self, menu: Menu) -> None:
        """Judge partitions of *menu* until one fits, however late it is."""
        for partition in menu.best(tolerance=ROUGH)[:JUDGED]:
            self.tried += 1
            if self.judged(menu, partition) < inf:
                break

    def begin_with(self, left: Iterable[Menu]) -> None:
        """A rough partition of each of *left*, the likely ones first, for as long as
        that helps: what is good soon tells of most menus that they are not."""
        seen, in_vain = list[Menu](), 0
        for menu in left:
            around = menu.around or menu
            if in_vain == PATIENCE or self.clock.over or menu.guess_s >= self.value_s:
                return
            if not menu.knows_ways or any(around is one for one in seen):
                continue
            seen.append(around)
            before = self.value
            self.judge_all(around, around.roughly(ROUGH, self.value_s)[:ROUGHLY_JUDGED])
            in_vain = 0 if self.value < before else in_vain + 1

    def judge(self, menu: Menu, partition: Partition) -> float:
        """The value of *partition*; infinite where it is no better or does not fit."""
        if self.clock.over or menu.path_s(partition) >= self.value_s:
            return inf
        return self.judged(menu, partition)

    def judged(self, menu: Menu, partition: Partition) -> float:
        """The value of *partition*; infinite where it does not fit."""
        self.simulated += 1
        candidate = simulate(self.problem, self.beside, menu.layout(partition))
        if candidate is None:
            return inf
        self.found[candidate.estimate.layout] = candidate
        worth = self.problem.value(candidate)
        if worth < self.value:
            self.value, self.best = worth, (menu, partition)
        return worth

    def judge_all(self, menu: Menu, parts: Sequence[Partition]) -> None:
        """The first of *parts*."""
        self.tried += len(parts)
        for partition in parts[:JUDGED]:
            self.judge(menu, partition)

    def open(self, menu: Menu) -> float:
        """Judge the best partitions of *menu*; what none of it takes less than."""
        if not menu.knows_ways or self.value == inf:
            below_s = self.value_s * (1 + HIDDEN)
            self.judge_all(menu, menu.best(tolerance=TOLERANCE, below_s=below_s))
        if not menu.knows_ways or self.value == inf:
            return menu.lower_s
        parts, known_s = self.grown(menu, self.value_s, NARROW)
        self.judge_all(menu, parts)
        return known_s

    def grown(
        self, menu: Menu, below_s: float, width: int
    ) -> tuple[list[Partition], float]:
        """Those of *menu*; none where time ends before they are known."""
        try:
            return menu.grown(below_s, width, self.clock.require)
        except OutOfTime:
            return [], menu.lower_s

    def climb(self) -> None:
        """Move the cuts of the best one."""
        if self.best is not None:
            menu, partition = self.best
            for _ in climbed(partition, self.value, partial(self.moved, menu)):
                pass

    def moved(self, menu: Menu, partition: Partition) -> float:
        """The value of what no menu proposed."""
        self.tried += 1
        return self.judge(menu, partition)

    def proven_s(self, opened: Sequence[tuple[float, Menu]]) -> float:
        """What no partition of menus takes less than that are *opened* and known to
        take no less than so many seconds, of what is below the best value."""
        lower_s = inf
        for known_s, menu in sorted(opened, key=lambda pair: pair[0]):
            if known_s >= min(lower_s, self.value_s):
                break
            menu = replace(menu)  # its tables go with it
            # Below what another may take nothing more is told of this one.
            known_s = self.widened_s(menu, known_s, lower_s)
            lower_s = min(lower_s, known_s)
        return min(lower_s, self.value_s)

    def widened_s(self, menu: Menu, known_s: float, below_s: float) -> float:
        """What no partition of *menu* takes less than, or *below_s*; of a tree as wide
        as it has to be, if it may tell more than a bound of the whole menu does."""
        bound_s = self.lower_s([menu], min(below_s, self.value_s))
        narrow = NARROW
        for width in WIDER:
            below_s = min(below_s, self.value_s)
            tells = menu.knows_ways and self.value < inf and not self.clock.over
            if not tells or max(known_s, bound_s) >= below_s:
                break
            parts, wider_s = self.grown(menu, below_s, width)
            self.judge_all(menu, parts)
            gained_s = max(wider_s - known_s, 0.0) / log(width / narrow)
            known_s, narrow = max(known_s, wider_s), width
            if known_s + gained_s * log(WIDER[-1] / width) < bound_s:
                break  # not even the widest one will
        return max(known_s, bound_s)

    def lower_s(self, every: Iterable[Menu], best_s: float) -> float:
        """What no partition of *every* menu takes less than, of what is below *best_s*;
        only roughly when time is over."""
        lower_s = best_s
        for menu in every:
            if menu.lower_s < lower_s:
                known = lower_s < inf and not self.clock.over
                found_s = menu.tighter_s(lower_s, self.late) if known else menu.lower_s
                lower_s = min(lower_s, found_s)
        return lower_s


SHARE: Final = 0.3  # of the time, for alike stages over islands
# Simulations of them: nothing is proven by more, and bounds of slow links are loose.
ALIKE: Final = 100
ISLANDS: Final = "islands"  # the search over them
ALONE: Final = "any-stage"  # that of one island where none are alike


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
    found = _searched(problem, solution.best.choice, solution.value, clock)
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


def stages_alone(problem: Problem, limits: Limits) -> Solution:
    """The best layout of stages of any mesh, each of them inside one island, where
    there are no alike ones to begin with; or of alike ones over all islands where
    those are better: the bound does not speak of them.

    Raises as `require_possible`, and OutOfTime if time passed before any fitted.
    """
    require_possible(problem)
    clock = Clock(limits=limits)
    if not states_fit(problem):
        return hopeless_by_states(_name(problem), clock.seconds, only_unlike=True)
    alone = Uniform(precision=problem.precision, offload=problem.offload)
    deep = _very_deep(problem)
    alike = [*_alike(problem, limits), *deep]
    best = min(alike, key=problem.value, default=None)
    value = inf if best is None else problem.value(best)
    found = _searched(problem, alone, value, clock, alone=best is None)
    if best is None and not found.candidates and not found.complete:
        raise clock.out_of_time(found.partitions)
    proven = False
    if found.candidates and problem.value(found.candidates[0]) < value:
        best = found.candidates[0]
        value = problem.value(best)
        proven = found.complete and found.lower >= value * (1 - EXACT)
    lower, lower_s = found.lower, found.lower_s
    if any(one is best for one in deep):  # cut where groups of layers are not
        lower_s = min(lower_s, found.any_cut_s)
        lower = min(lower, _least_value(problem, lower_s))
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    left_out = found.partitions - found.simulated
    others = sorted((*alike, *found.candidates), key=problem.value)
    return Solution(
        search=_name(problem),
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


def _searched(
    problem: Problem,
    beside: Uniform,
    value: float,
    clock: Clock,
    *,
    alone: bool = False,
) -> Found:
    if problem.objective is Objective.MEMORY:
        return leanest_of_any(problem, beside, value, clock, alone=alone)
    return stages_of_any(problem, beside, value, clock, alone=alone, anything=any_fits)


def _name(problem: Problem) -> str:
    return ISLANDS if is_unlike(problem) else ALONE


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


def _very_deep(problem: Problem) -> list[Candidate]:
    """What fits by cuts between any layers, where those are too many for the others."""
    deep = is_unlike(problem) and group_size(problem.job.graph.body) > 1
    found = any_fits(problem) if deep else None
    return [found] if found else []


def _least_value(problem: Problem, step_s: float) -> float:
    """What a step that takes no less is worth; 0 where memory is: nothing is known."""
    if problem.objective is Objective.MEMORY:
        return 0.0
    return step_s * float(problem.value_of(1.0, 1.0))


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
            "--any-stage, unlike islands: `execute` carries out stages of one mesh "
            "alone; add --any-mechanism, or leave --any-stage out"
        )
    if not problem.offers("stages", "unlike"):
        instead = "leave --any-stage out"
        if is_unlike(problem):
            instead = "choose --search megatron, which plans for the slowest device"
        raise Unsupported(
            f"--any-stage, unlike islands: {problem.runs_on} has one mesh for all "
            f"stages; {instead}, or add --any-mechanism"
        )
    what = "a cluster of unlike islands" if is_unlike(problem) else "--any-stage"
    if problem.machine.turns > 1:
        raise Unsupported(
            f"{what} on more ranks than the profiled machine has cores: the price of a "
            "stage hangs on who else computes; ask for as many as it has, or leave "
            "--any-stage out"
        )
    wrong = alike_alone(problem)
    if wrong and only_unlike(problem):
        raise Contradiction(
            f"{what} with {', '.join(wrong)}: its stages run 1F1B, of any size; "
            "leave one of them out"
        )


def alike_alone(problem: Problem) -> list[str]:
    """The pins that stages of unlike meshes cannot keep."""
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
    return wrong


def any_fits(problem: Problem, clock: Clock | None = None) -> Staged | None:
    """A layout of stages of any mesh that fits, if there is one: those that need the
    least memory, or where these need more than they seem to, those that the programme
    proposes; the most micro-batches first, as long as there is time by the *clock*.

    Raises as `require_possible`.
    """
    require_possible(problem)
    if not states_fit(problem):
        return None
    alone = Uniform(precision=problem.precision, offload=problem.offload)
    for menu in lean_menus(problem):
        for partition in _proposed(menu):
            if clock is not None and clock.over:
                return None
            found = simulate(problem, alone, menu.layout(partition))
            if found is not None:
                return found
    return None


def _proposed(menu: Menu) -> Iterator[Partition]:
    """One that fits by what its stages need, the one that needs least, and those of the
    programme, as they are asked for; none where no stages need so little."""
    cuts = Cuts.of(
        menu.options,
        devices=menu.problem.gpus,
        micro_batches=menu.micro_batches,
        stages=menu.problem.pins.pp,
    )
    some = cuts.within(inf)
    if some.partition is None:  # no stage needs less than it seems to
        return
    yield some.partition
    lean = cuts.leaner(some)
    assert lean.partition is not None, "it is the same one at worst"
    yield lean.partition
    if group_size(menu.problem.job.graph.body) == 1:  # the programme takes the square
        yield from menu.best(tolerance=TOLERANCE)[:JUDGED]
