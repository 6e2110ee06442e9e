"""The leanest stages of any mesh, where memory is the objective.

    for each turn, until no menu has stages that need less than the best value
        the menu whose leanest stages need least                  → lean_stages
        those simulated

A menu is halved (`Cuts.leaner`) only where it has stages that need less than the
leanest of the menus before it; of most menus one look says that it has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from costmodel.layout import Layout, Uniform
from planner.heterogeneous.bound import root_bound_s
from planner.heterogeneous.candidate_set import Menu, menus
from planner.heterogeneous.lean_stages import Cuts, Lean
from planner.heterogeneous.partition import EXACT
from planner.problem import Found, Problem, Staged, simulate
from planner.search import Clock

_Told = tuple[Menu, Cuts]


def leanest_of_any(
    problem: Problem, beside: Uniform, value: float, clock: Clock, *, alone: bool
) -> Found:
    """Of each menu the leanest partition, as far as it may need less than *value*; one
    that fits at least, where they are *alone* and there is one, whatever the time."""
    hunt = _LeanHunt(
        problem=problem, beside=beside, value=value, clock=clock, alone=alone
    )
    left, any_cut_s = hunt.priced()
    looked_at = len(left)  # a partition of each, its leanest
    while not hunt.ends:
        found = hunt.leanest_of(left)
        if found is None:
            break
        told, lean = found
        left.remove(told)
        hunt.judge(told[0], lean)
    complete = not clock.over
    lower = min(hunt.least_bytes, hunt.value)
    return Found(
        candidates=tuple(sorted(hunt.found.values(), key=problem.value)),
        partitions=looked_at,
        simulated=hunt.simulated,
        lower=lower if complete else 0.0,
        lower_s=any_cut_s,
        complete=complete,
        any_cut_s=any_cut_s,
    )


@dataclass(kw_only=True)
class _LeanHunt:
    """The best value so far, and what was found on the way to it."""

    problem: Problem
    beside: Uniform
    value: float
    clock: Clock
    alone: bool
    found: dict[Layout, Staged] = field(default_factory=dict)
    least_bytes: float = inf  # of the leanest partitions, as the menus have it
    simulated: int = 0

    @property
    def ends(self) -> bool:
        """Whether time is over, and there is an answer if there has to be one."""
        return self.clock.over and (self.value < inf or not self.alone)

    def priced(self) -> tuple[list[_Told], float]:
        """The menus that have options, and the seconds that none takes less than."""
        told = list[_Told]()
        for menu in self._menus():
            told.append((menu, self._cuts(menu)))
            if self.clock.over:
                return told, root_bound_s(self.problem)
        told.sort(key=lambda one: one[0].lower_s)
        return told, min((menu.lower_s for menu, _ in told), default=inf)

    def _menus(self) -> Iterator[Menu]:
        return (menu for menu in menus(self.problem) if menu.options)

    def _cuts(self, menu: Menu) -> Cuts:
        return Cuts.of(
            menu.options,
            devices=self.problem.gpus,
            micro_batches=menu.micro_batches,
            stages=self.problem.pins.pp,
        )

    def leanest_of(self, left: list[_Told]) -> tuple[_Told, Lean] | None:
        """The one of *left* whose leanest partition needs least, and less than the best
        value, and that; those that have none are dropped from it."""
        leanest: tuple[_Told, Lean] | None = None
        limit, dropped = self.value, list[_Told]()
        for one in left:
            if self.ends or (self.clock.over and leanest is not None):
                break
            some = one[1].within(limit * (1 - EXACT))
            if some.partition is None and limit == self.value:
                dropped.append(one)
            elif some.partition is not None:
                found = one[1].leaner(some, lambda: self.clock.over)
                if found.peak_bytes < limit:
                    leanest, limit = (one, found), found.peak_bytes
        for one in dropped:
            left.remove(one)
        return leanest

    def judge(self, menu: Menu, lean: Lean) -> None:
        """Simulate the leanest partition of *menu*."""
        assert lean.partition is not None, "it has one"
        self.least_bytes = min(self.least_bytes, lean.peak_bytes)
        self.simulated += 1
        candidate = simulate(self.problem, self.beside, menu.layout(lean.partition))
        if candidate is not None:
            self.found[candidate.estimate.layout] = candidate
            self.value = min(self.value, self.problem.value(candidate))
