"""Steps that are not flushed: which passes a step has, on what, with which weights.

A run of steps is cut at each rank's own updates. The first step fills the pipeline,
the last one drains it; micro-batches are numbered from the fill on. Nothing waits for
all ranks: gradients are clipped by their stage's own norm, and the last stage tells the
others the loss without waiting until they hear it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from costmodel.layout import Layout
from costmodel.schedule import (
    Action,
    Kind,
    Staleness,
    Stream,
    schedule_called,
    with_transfers,
)
from runtime.optim import Lateness, Remedy, WeightVersions, clip_factor
from runtime.pipeline import Executor
from runtime.train.step_hooks import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """What is done about gradients that are late: any of `REMEDIES`, T1 for the first
    *steps* of a run."""

    remedy: str = "none"
    steps: int = 0


def step_stream(
    layout: Layout, rank: int, *, since: int, steps: int | None = None
) -> Stream:
    """All that pipeline *rank* does in the step that is *since* steps after the fill,
    of a run of so many *steps*."""
    stale, pp, m = _of(layout), layout.pp, layout.micro_batches
    whole = None if steps is None else steps * m
    passes = [
        tuple(_passes(one, stale.ahead(one, pp), since * m, m, whole))
        for one in range(pp)
    ]
    return with_transfers(passes, range(pp))[rank]


def _passes(
    rank: int, ahead: int, first: int, micro_batches: int, whole: int | None
) -> Iterator[Action]:
    """A forward, so far *ahead*, and a backward in turn, of a step from micro-batch
    *first* of a *whole* run on."""

    def forwards(numbers: range) -> Iterator[Action]:
        for number in numbers:
            if whole is None or number < whole:
                yield Action(kind=Kind.F, stage=rank, micro_batch=number)

    yield from forwards(range(0 if first else ahead))
    for number in range(first, first + micro_batches):
        yield from forwards(range(number + ahead, number + ahead + 1))
        yield Action(kind=Kind.B, stage=rank, micro_batch=number)


def _of(layout: Layout) -> Staleness:
    found = schedule_called(layout.schedule).stale
    assert found is not None, "steps of other schedules are flushed"
    return found


@dataclass
class Batches:
    """The micro-batches of a run since its fill, by number; *read* gives a step's."""

    read: Callable[[int], tuple[list[Tensor], list[Tensor]]]
    micro_batches: int
    _known: dict[int, tuple[list[Tensor], list[Tensor]]] = field(default_factory=dict)

    def since(self, step: int) -> tuple[Side, Side]:
        """Tokens and targets of *step* and what comes after it."""
        self._known = {one: two for one, two in self._known.items() if one >= step}
        return Side(self, 0), Side(self, 1)

    def at(self, number: int) -> tuple[Tensor, Tensor]:
        """What is read of a micro-batch, and what comes next."""
        step, place = divmod(number, self.micro_batches)
        if step not in self._known:
            self._known[step] = self.read(step)
        tokens, targets = self._known[step]
        return tokens[place], targets[place]


@dataclass(frozen=True, slots=True)
class Side:
    """Tokens (0) or targets (1) of *batches*."""

    batches: Batches
    place: int

    def __getitem__(self, number: int, /) -> Tensor:
        return self.batches.at(number)[self.place]


class StaleStep(Step):
    """The hooks of a rank whose one stage is updated by itself, while passes of later
    steps are in flight."""

    def __init__(self, *parts: Any, layout: Layout, rank: int, late: Late) -> None:
        super().__init__(*parts)
        self._stale, self._micro_batches = _of(layout), layout.micro_batches
        self._ahead = self._stale.ahead(rank, layout.pp)
        (stage,) = self.stages.values()
        self.weights = WeightVersions(one for _, one in stage.named_parameters())
        self.updates = 0  # of all the run: the optimizer's, for what is annealed
        m = self._micro_batches
        lateness = Lateness(
            updates=self._stale.updates_late(rank, layout.pp, m),
            tau=(self._ahead + 1) / m,
        )
        self._remedy = Remedy(self.optimizer, late.remedy, lateness, steps=late.steps)
        self.fill(0)

    def fill(self, step: int) -> None:
        """The pipeline is empty, and filled with *step* first."""
        self._forwards = self._backwards = 0
        self.updates = step
        self.weights.fill()
        self._remedy.fill()

    @contextmanager
    def forward(self, stage: int) -> Iterator[None]:
        """Around a stage's forward."""
        self.weights.use(self._version(self._forwards))
        self._forwards += 1
        with self._remedy.forward(), super().forward(stage):
            yield

    @contextmanager
    def backward(self, stage: int, kind: Kind, last: bool) -> Iterator[None]:
        """Around a stage's backward."""
        stashed = self._version(self._backwards)
        self.weights.use(stashed if self._stale.stashes else self.weights.newest)
        self._backwards += 1
        with self._remedy.backward(), super().backward(stage, kind, last):
            yield

    def step(self) -> None:
        """STEP: update this rank's stage."""
        self._sum_tied()
        made = self._made()
        self.norm = _norm(made)
        self._factor = clip_factor(self.norm, self.optimizer.settings.clip)
        self.weights.renew(self._oldest)
        self._remedy.update(made, self._factor, step=self.updates)
        self.updates += 1

    def _version(self, number: int) -> int:
        """Which weights the forward of a micro-batch runs with."""
        if not self._stale.stashes:
            return self.weights.newest
        return self._stale.version(number, self._ahead, self._micro_batches)

    @property
    def _oldest(self) -> int:
        """The oldest version that passes to come want."""
        if not self._stale.stashes:
            return self.weights.newest + 1
        return self._version(self._backwards)


def _norm(made: Mapping[str, Tensor]) -> float:
    """The L2 norm of one stage's gradients, which each of its ranks has all of."""
    if not made:
        return 0.0
    each = torch.stack(torch._foreach_norm(list(made.values())))
    return float(each.double().norm())


class Told:
    """What the last of the pipeline ranks of *group* tells the others, which need not
    listen yet."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._ranks = group, dist.get_process_group_ranks(group)
        self._last = group.rank() == group.size() - 1
        self._away: deque[tuple[Tensor, list[Any]]] = deque()

    def heard(self, value: Tensor, *, wait: bool) -> float:
        """The last rank's *value*, on every rank; that one may *wait* for the others
        to have heard all."""
        if not self._last:
            dist.recv(value, src=self._ranks[-1], group=self._group)
            return float(value)
        while self._away and all(one.is_completed() for one in self._away[0][1]):
            self._away.popleft()
        others = self._ranks[:-1]
        works = [dist.isend(value, dst=one, group=self._group) for one in others]
        self._away.append((value, works))
        while wait and self._away:
            for work in self._away.popleft()[1]:
                work.wait()
        return float(value)


class Flow:
    """A run of steps, cut at the updates of pipeline *rank*; *read* gives a step's
    micro-batches."""

    def __init__(
        self,
        layout: Layout,
        rank: int,
        hooks: StaleStep,
        read: Callable[[int], tuple[list[Tensor], list[Tensor]]],
        told: Told,
    ) -> None:
        self._told = told
        self._layout, self._rank, self._hooks = layout, rank, hooks
        self._read = read
        self._first: int | None = None  # step of a run that has not ended
        self._batches = Batches(read, layout.micro_batches)

    @property
    def steps_to_fill(self) -> int:
        """Steps until as much is in flight as ever is: on the first rank."""
        stale, pp = _of(self._layout), self._layout.pp
        most = int(stale.ahead(0, pp)) + 1
        return -(-most // self._layout.micro_batches)

    def step(
        self, executor: Executor, number: int, until: int | None = None
    ) -> list[Tensor]:
        """Step *number*, of a run that ends before *until*: the losses of its
        micro-batches, where this rank holds the last stage."""
        until = number + 1 if until is None else until
        goes_on = self._first is not None
        if self._first is None:
            self._first = first = number
            self._hooks.fill(number)
            self._batches = Batches(
                lambda since: self._read(first + since), self._layout.micro_batches
            )
        since, drains = number - self._first, number == until - 1
        executor.stream = step_stream(
            self._layout, self._rank, since=since, steps=until - self._first
        )
        found = executor.step(
            *self._batches.since(since), goes_on=goes_on, drains=drains
        )
        if drains:
            self._first = None
        return found

    def heard(self, loss: Tensor) -> float:
        """The last stage's *loss*, on every rank."""
        return self._told.heard(loss, wait=self._first is None)
