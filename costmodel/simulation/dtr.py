"""Dynamic tensor rematerialization: a cache of tensors that evicts what it can remake.

A trace of operators runs within a budget of bytes. Where the next output does not fit,
the resident tensor of the least h is evicted; where an input is not there, the operator
that made it runs again, and before it those of its inputs.

    h-DTR     (c + Σ c of the evicted neighbourhood) / (size · staleness)
    h-eq      the same by union-find: evicted tensors that hang together are one class,
              which a tensor leaves, with its own cost, when it is remade
    h-local   c / (size · staleness)
    lru       1 / staleness          largest   1 / size
    msps      (c + Σ c of evicted ancestors) / size               random

The neighbourhood of a tensor are the evicted ones that would have to be remade with it,
and those that would need it: ancestors and descendants along evicted tensors. After
Kirisame et al. (ICLR 2021); what dies is freed, and is no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isqrt
from random import Random
from typing import Final

from profiles.errors import InvalidSpec

HEURISTICS: Final = ("h-dtr", "h-eq", "h-local", "lru", "largest", "msps", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An operator of a trace: reads tensors, by the number of the step that made them,
    makes one of *size*, and is the last to need those that it *frees*."""

    inputs: tuple[int, ...]
    cost: float = 1.0
    size: float = 1.0
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a trace cost: of all operators, and those of them that ran again."""

    cost: float
    again: float
    peak: float

    @property
    def overhead(self) -> float:
        """All of the cost, in units of that without a budget."""
        return self.cost / (self.cost - self.again)


def run(steps: Sequence[Step], budget: float, heuristic: str = "h-dtr") -> Run:
    """Carry *steps* out within *budget*; raises InvalidSpec where one alone needs
    more."""
    if heuristic not in HEURISTICS:
        raise InvalidSpec(f"{heuristic!r} is not one of {', '.join(HEURISTICS)}")
    cache = _Cache(steps=steps, budget=budget, heuristic=heuristic)
    for number in range(len(steps)):
        cache.make(number)
    return Run(cost=cache.cost, again=cache.again, peak=cache.peak)


def chain(layers: int) -> list[Step]:
    """A linear network: *layers* forwards, each of the one before, and as many
    backwards, each of the gradient and of its forward's input; all alike.

    Two tensors of gradients are one buffer, which the budget holds beside the others.
    """
    steps = [Step(inputs=(number - 1,) if number else ()) for number in range(layers)]
    for back in range(layers):
        given = layers - 2 - back  # what this layer read; the first one read the input
        before = (len(steps) - 1,) if back else ()
        inputs = (*before, *((given,) if given >= 0 else ()))
        dead = (*before, layers - 1 - back)
        steps.append(Step(inputs=inputs, frees=dead))
    return steps


@dataclass(kw_only=True)
class _Cache:
    steps: Sequence[Step]
    budget: float
    heuristic: str
    cost: float = 0.0
    again: float = 0.0
    peak: float = 0.0
    _resident: dict[int, float] = field(default_factory=dict)  # when last used
    _made: set[int] = field(default_factory=set)
    _dead: set[int] = field(default_factory=set)
    _held: dict[int, int] = field(default_factory=dict)  # by running operators
    _used: float = 0.0
    _users: dict[int, list[int]] = field(default_factory=dict)
    _near: dict[int, float] = field(default_factory=dict)  # costs that are known
    _classes: _Classes = field(default_factory=lambda: _Classes())
    _random: Random = field(default_factory=lambda: Random(0))

    def __post_init__(self) -> None:
        for number, step in enumerate(self.steps):
            for given in step.inputs:
                self._users.setdefault(given, []).append(number)

    def make(self, number: int) -> None:
        """Run step *number*, and before it those that make what it reads and is not
        there; an input is held from when it is there until its reader has run."""
        running = [(number, iter(self.steps[number].inputs))]
        while running:
            at, left = running[-1]
            for one in left:
                if one not in self._resident:
                    running.append((one, iter(self.steps[one].inputs)))
                    break
                self._hold(one, 1)
            else:
                running.pop()
                self._run(at)
                if running:
                    self._hold(at, 1)

    def _run(self, number: int) -> None:
        step = self.steps[number]
        self._evict(step.size)
        self.cost += step.cost
        self.again += step.cost if number in self._made else 0.0
        for one in step.inputs:
            self._hold(one, -1)
            self._resident[one] = self.cost
        self._enter(number)
        if number not in self._made:
            self._made.add(number)
            for one in step.frees:
                self._free(one)

    def _hold(self, one: int, more: int) -> None:
        count = self._held.get(one, 0) + more
        if count > 0:
            self._held[one] = count
        else:
            self._held.pop(one, None)

    def _enter(self, number: int) -> None:
        self._resident[number] = self.cost
        self._used += self.steps[number].size
        self.peak = max(self.peak, self._used)
        if number in self._made:
            self._classes.leave(number, self.steps[number].cost)
            self._forget(number)

    def _free(self, one: int) -> None:
        """Nobody needs it any more: it is no neighbour either."""
        self._dead.add(one)
        if one in self._resident:
            del self._resident[one]
            self._used -= self.steps[one].size
        else:
            self._classes.leave(one, self.steps[one].cost)
        self._forget(one)

    def _evict(self, size: float) -> None:
        while self._used + size > self.budget:
            open_to = [one for one in self._resident if one not in self._held]
            if not open_to:
                raise InvalidSpec(
                    f"a budget of {self.budget:g} does not hold one operator with its "
                    "inputs; give more"
                )
            one = min(open_to, key=_SCORES[self.heuristic](self))
            del self._resident[one]
            self._used -= self.steps[one].size
            evicted = [other for other in self._around(one) if self._gone(other)]
            self._classes.join(one, self.steps[one].cost, evicted)
            self._forget(one)

    def _gone(self, one: int) -> bool:
        return one in self._made and one not in self._resident and one not in self._dead

    def _around(self, one: int) -> Iterable[int]:
        return (*self.steps[one].inputs, *self._users.get(one, ()))

    def _evicted(self, one: int, onward: Callable[[int], Iterable[int]]) -> set[int]:
        """Evicted tensors that *one* leads to along evicted ones."""
        found: set[int] = set()
        waiting = [one]
        while waiting:
            for other in onward(waiting.pop()):
                if other not in found and self._gone(other):
                    found.add(other)
                    waiting.append(other)
        return found

    def ancestors(self, one: int) -> set[int]:
        return self._evicted(one, lambda at: self.steps[at].inputs)

    def neighbourhood(self, one: int) -> float:
        """The cost of evicted ancestors and descendants."""
        if one not in self._near:
            below = self._evicted(one, lambda at: self._users.get(at, ()))
            every = self.ancestors(one) | below
            self._near[one] = sum(self.steps[other].cost for other in every)
        return self._near[one]

    def _forget(self, one: int) -> None:
        """What is known of neighbourhoods that *one* is, or was, part of."""
        self._near.pop(one, None)
        reached = {one} | self._evicted(one, self._around)
        for other in reached:
            for edge in self._around(other):
                self._near.pop(edge, None)

    def stale(self, one: int) -> float:
        """Cost since it was last used."""
        return self.cost - self._resident[one]

    def classes_of(self, one: int) -> float:
        """The cost of the classes of evicted tensors beside it."""
        return self._classes.cost(
            other for other in self._around(one) if self._gone(other)
        )

    def draw(self) -> float:
        return self._random.random()


class _Classes:
    """Evicted tensors that hang together, by union-find, and the cost of each class."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}
        self._cost: dict[int, float] = {}
        self._latest: dict[int, int] = {}  # the member that a tensor is now
        self._next = 0

    def join(self, one: int, cost: float, others: Iterable[int]) -> None:
        """*one* is evicted, beside *others* that are."""
        member = self._next
        self._next += 1
        self._latest[one], self._parent[member] = member, member
        self._cost[member] = cost
        for other in others:
            self._union(member, self._latest[other])

    def leave(self, one: int, cost: float) -> None:
        """*one* is there again: its cost leaves, the class stays together."""
        member = self._latest.pop(one, None)
        if member is not None:
            self._cost[self._root(member)] -= cost

    def cost(self, some: Iterable[int]) -> float:
        roots = {self._root(self._latest[one]) for one in some}
        return sum(self._cost[root] for root in roots)

    def _union(self, one: int, other: int) -> None:
        left, right = self._root(one), self._root(other)
        if left != right:
            self._parent[right] = left
            self._cost[left] += self._cost.pop(right)

    def _root(self, one: int) -> int:
        while self._parent[one] != one:
            self._parent[one] = self._parent[self._parent[one]]
            one = self._parent[one]
        return one


Score = Callable[[int], float]


def _stale(cost: Callable[[_Cache, int], float]) -> Callable[[_Cache], Score]:
    def scores(cache: _Cache) -> Score:
        def score(one: int) -> float:
            late = cache.stale(one) * cache.steps[one].size
            return cost(cache, one) / late if late > 0 else inf

        return score

    return scores


def _own(cache: _Cache, one: int) -> float:
    return cache.steps[one].cost


_SCORES: Final[dict[str, Callable[[_Cache], Score]]] = {
    "h-dtr": _stale(lambda cache, one: _own(cache, one) + cache.neighbourhood(one)),
    "h-eq": _stale(lambda cache, one: _own(cache, one) + cache.classes_of(one)),
    "h-local": _stale(_own),
    "lru": lambda cache: lambda one: -cache.stale(one),
    "largest": lambda cache: lambda one: -cache.steps[one].size,
    "msps": lambda cache: (
        lambda one: (
            (
                _own(cache, one)
                + sum(_own(cache, other) for other in cache.ancestors(one))
            )
            / cache.steps[one].size
        )
    ),
    "random": lambda cache: lambda one: cache.draw(),
}


def least_budget(layers: int) -> float:
    """2⌈√N⌉ tensors, in which the linear network of the paper's theorem is trained."""
    return 2.0 * (isqrt(layers - 1) + 1)


def compared(steps: Sequence[Step], budget: float) -> Iterator[tuple[str, Run | None]]:
    """Every heuristic's run; None where the budget is too small for it."""
    for name in HEURISTICS:
        try:
            yield name, run(steps, budget, name)
        except InvalidSpec:
            yield name, None
