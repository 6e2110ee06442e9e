"""The search for the best stages of any mesh: menus by their bounds, partitions by what
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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, log
from typing import Final

from costmodel.layout import Layout
from costmodel.uniform import Uniform
from planner.problem import Problem, Staged
from planner.root_bound import root_bound_s
from planner.search import Clock
from planner.stage_cuts import climbed
from planner.stage_found import Found, simulate
from planner.stage_menu import Menu, menus
from planner.stage_partition import Partition
from profiles.errors import OutOfTime

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
