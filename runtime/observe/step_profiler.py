"""`Watch`: which step of a run is watched how, and what this rank tells of it.

first             its actions and their traffic are recorded, if asked
second            the peak of its memory
then 1, or 3      listened to (`Listener`): collectives and products by themselves
then 1, if asked  traced by torch's profiler
the others        timed, action by action
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from runtime.observe.aten_operators import HEARD
from runtime.observe.rank_reports import Report, Spans
from runtime.observe.run_summary import WARM_UP_STEPS, WATCHED_STEPS
from runtime.trace import ActionClock, Listener, Peak, traced, watched
from runtime.train import StepResult, Trainer

OBSERVED_STEPS: Final = 3  # that are listened to where samples are asked for
MOST_TIMED: Final = 8  # steps whose actions are kept


class Watch:
    """Carries the steps of a run out; `peak` and `report` say what was seen."""

    def __init__(
        self, trainer: Trainer, *, record: bool, untimed: int, trace: str | None
    ) -> None:
        self.trainer, self.record, self.untimed = trainer, record, untimed
        self.trace = None if trace is None else Path(trace)
        self.peak = Peak()
        self._clock = ActionClock(trainer.device)
        self._listener = Listener(trainer.recorder.axes, trainer.device)
        self._timed: deque[Spans] = deque(maxlen=MOST_TIMED)
        self._listened: list[Spans] = []

    def step(self, number: int, *, since: int) -> StepResult:
        """Step *number*, the *since*-th that this process carries out."""
        if since == 0:
            return self.trainer.step(number, record=self.record)
        if since == WATCHED_STEPS - 1:
            return self._remembered(number)
        if self.trace is not None and since == self.untimed - 1:
            with traced(self.trace, dist.get_rank(), self.trainer.device):
                return self.trainer.step(number)
        if since < self.untimed:
            result = self.trainer.step(number, watch=self._listener)
            self._listened.append(self._listener.spans())
            return result
        result = self.trainer.step(number, watch=self._clock)
        self._timed.append(self._clock.spans())
        return result

    def report(self) -> Report | None:
        """What this rank has to tell; None where no step was timed."""
        if not self._timed or not self._listened:
            return None
        trainer = self.trainer
        boundary = trainer.boundary
        return Report(
            pipeline=tuple(
                dist.get_process_group_ranks(trainer.mesh["pp"].get_group())
            ),
            holders=tuple(stage.held_by[0] for stage in trainer.layout.stages),
            boundary_bytes=prod(boundary) * trainer.rules.activation.itemsize,
            parameters=sum(leaf.value.numel() for leaf in trainer.optimizer.leaves),
            timed=tuple(self._timed),
            listened=tuple(self._listened),
            calls=tuple(self._listener.calls),
            operations=tuple(
                one for one in self._listener.operations if one.name in HEARD
            ),
        )

    def _remembered(self, number: int) -> StepResult:
        self.trainer.forget()
        with watched(self.trainer.device) as peak:
            result = self.trainer.step(number)
        self.peak = peak
        return result


def untimed_steps(*, observe: bool, trace: bool = False) -> int:
    """How many steps at the beginning of a run are not timed."""
    return WARM_UP_STEPS + (OBSERVED_STEPS - 1 if observe else 0) + trace


def everyone(own: Report | None) -> list[Report] | None:
    """The reports of all ranks, on every rank; None where one has none."""
    found: list[Any] = [None] * dist.get_world_size()
    # Operators are the same on every rank: the first one's are enough.
    mine = own and (own if dist.get_rank() == 0 else replace(own, operations=()))
    dist.all_gather_object(found, mine)
    return None if None in found else found
