"""What a run measured, as `execute --json` prints it, and which step measures what.

first             its actions and their traffic are recorded, if asked
second            the peak of its memory (where steps are not flushed, of as many as
                  fill the pipeline)
then 1, or 3      instrumented (`Listener`): collectives and products one by one
then 1, if asked  traced by torch's profiler
the others        timed, action by action
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from costmodel.trace import MEASURED_FILE, trace_text
from profiles.files import write_text
from profiles.models import Job
from runtime.observe.action_trace import measured_trace
from runtime.observe.rank_reports import (
    MEASURED_OPERATORS,
    Report,
    Spans,
    exchanges,
    operators,
    parts,
    sends,
)
from runtime.observe.samples import document, summary
from runtime.trace import ActionClock, Listener, Peak, traced, watched
from runtime.train import StepResult, Trainer


def measured_parts(
    reports: Sequence[Report] | None, job: Job, step_s: float, *, device: str
) -> dict[str, Any]:
    """`parts_s`, `exchanges` and `operators`; nothing of a run too short to tell."""
    if reports is None:
        return {}
    local = int(os.environ.get("LOCAL_WORLD_SIZE", len(reports)))
    found = exchanges(reports, local)
    message = sends(reports, local) if _one_clock(reports, device) else None
    rows = document([*found, *([message] if message else [])])
    sent = next((row["median_s"] for row in rows if row["collective"] == "send"), None)
    heard = operators(reports[0], job.optimizer)
    on_cpu = device == "cpu"
    return {
        "parts_s": parts(
            reports,
            step_s,
            sent,
            hides=not on_cpu,
            own_core=on_cpu and _has_own_core(local),
        ),
        "exchanges": rows,
        "operators": [
            {
                **asdict(one),
                "shape": list(one.shape),
                "ranks": local,
                **summary(seconds),
            }
            for one, seconds in heard.items()
        ],
    }


def write_actions(
    folder: Path, reports: Sequence[Report] | None, trainer: Trainer, device: str
) -> None:
    """The actions of the timed steps, for `simulate --compare`; nothing of a run too
    short to have any."""
    if reports is None:
        return
    one_clock = _one_clock(reports, device)
    trace = measured_trace(reports, trainer.job, trainer.layout, one_clock=one_clock)
    write_text(folder / MEASURED_FILE, trace_text(trace))


def _one_clock(reports: Sequence[Report], device: str) -> bool:
    """Whether times of ranks compare: not those of several machines, or of several
    GPUs' streams."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", len(reports)))
    return device == "cpu" and local == len(reports)


def _has_own_core(local_ranks: int) -> bool:
    """Whether each of so many ranks, with its threads, has cores for itself."""
    cores = len(os.sched_getaffinity(0))
    return local_ranks * torch.get_num_threads() <= cores


# The first steps are watched (actions, memory, collectives) and warm caches up: they
# are not timed, unless the run has no others.
WATCHED_STEPS = 2
WARM_UP_STEPS = 3


@dataclass(slots=True)
class Observed:
    """Grows as the run goes on; `document` is what rank 0 hands back."""

    job: Job
    gpus: int
    untimed: int = WARM_UP_STEPS
    results: list[StepResult] = field(default_factory=list)
    peak: Peak = field(default_factory=Peak)
    evaluations: list[tuple[int, float]] = field(default_factory=list)

    @property
    def timed(self) -> list[StepResult]:
        """The steps that count for times."""
        return self.results[self.untimed :] or self.results[-1:]

    def forget_after(self, results: int, step: int) -> None:
        """Of what is done again, after so many *results*, that is *step* steps."""
        del self.results[results:]
        self.evaluations = [one for one in self.evaluations if one[0] <= step]

    def step_time_s(self) -> dict[str, float] | None:
        """Median, p10 and p90 of the timed steps; None of a run that had none to do."""
        if not self.results:
            return None
        seconds = [result.seconds for result in self.timed]
        low, middle, high = np.quantile(seconds, (0.1, 0.5, 0.9))
        return {"median": float(middle), "p10": float(low), "p90": float(high)}

    def tokens_per_s_per_gpu(self, seconds: float) -> float:
        """At *seconds* a step."""
        return self.job.tokens / seconds / self.gpus

    def document(
        self, peaks: Sequence[Mapping[str, int]], wall_s: float, first_step: int
    ) -> dict[str, Any]:
        """The run; *peaks* has one entry a rank, 0 where no step was watched."""
        seconds = self.step_time_s()
        return {
            "steps": len(self.results),
            "first_step": first_step,
            "losses": [number(result.loss) for result in self.results],
            "gradient_norms": [number(result.gradient_norm) for result in self.results],
            "evaluations": [
                {"step": step, "loss": number(loss)} for step, loss in self.evaluations
            ],
            "step_time_s": seconds,
            "wall_s": wall_s,
            "tokens_per_s_per_gpu": (
                self.tokens_per_s_per_gpu(seconds["median"]) if seconds else None
            ),
            "peak_allocated_bytes": [peak["allocated"] or None for peak in peaks],
            "peak_reserved_bytes": [peak["reserved"] for peak in peaks],
            "peak_memory_bytes": [peak["device"] for peak in peaks],
            "resident_bytes": [peak["resident"] for peak in peaks],
        }


def number(value: float) -> float | None:
    """*value* as JSON can say it: None for what is not finite, as the loss of a run
    that diverged or the norm of a step whose gradients overflowed.

    >>> number(1.5), number(float("nan"))
    (1.5, None)
    """
    return value if isfinite(value) else None


OBSERVED_STEPS: Final = 3  # that are listened to where samples are asked for
MOST_TIMED: Final = 8  # steps whose actions are kept


class StepProfiler:
    """Runs the steps, each measured in its own way; `peak` and `report` are results."""

    def __init__(
        self, trainer: Trainer, *, record: bool, untimed: int, trace: str | None
    ) -> None:
        self.trainer, self.record, self.untimed = trainer, record, untimed
        self.trace = None if trace is None else Path(trace)
        self.peak = Peak()
        self._watching: AbstractContextManager[Peak] | None = None
        # What torch.profiler sees begin has to end before it does: runs of their own.
        self._last_watched = trainer.steps_to_fill
        self._cuts = [1, 1 + self._last_watched]
        self._cuts += [] if trace is None else [untimed - 1, untimed]
        self._clock = ActionClock(trainer.device)
        self._listener = Listener(trainer.recorder.axes, trainer.device)
        self._timed: deque[Spans] = deque(maxlen=MOST_TIMED)
        self._listened: list[Spans] = []

    def step(self, number: int, *, since: int, until: int | None = None) -> StepResult:
        """Step *number*, the *since*-th that this process carries out; *until* as
        `Trainer.step` has it."""
        cuts = [number - since + cut for cut in self._cuts if cut > since]
        until = min([number + 1 if until is None else until, *cuts])
        if since == 0:
            return self.trainer.step(number, record=self.record, until=until)
        if since <= self._last_watched:
            return self._remembered(number, until)
        if self.trace is not None and since == self.untimed - 1:
            with traced(self.trace, dist.get_rank(), self.trainer.device):
                return self.trainer.step(number, until=until)
        if since < self.untimed:
            result = self.trainer.step(number, watch=self._listener, until=until)
            self._listened.append(self._listener.spans())
            return result
        result = self.trainer.step(number, watch=self._clock, until=until)
        self._timed.append(self._clock.spans())
        return result

    def report(self) -> Report | None:
        """What this rank has to tell; None where no step was timed."""
        if not self._timed or not self._listened:
            return None
        trainer, stage = self.trainer, self.trainer.stages[0]
        return Report(
            pipeline=tuple(
                dist.get_process_group_ranks(trainer.mesh["pp"].get_group())
            ),
            holders=tuple(one.held_by[0] for one in trainer.layout.stages),
            boundary_bytes=prod(stage.boundary) * stage.dtype.itemsize,
            parameters=sum(leaf.value.numel() for leaf in trainer.optimizer.leaves),
            timed=tuple(self._timed),
            listened=tuple(self._listened),
            calls=tuple(self._listener.calls),
            operations=tuple(
                one
                for one in self._listener.operations
                if one.name in MEASURED_OPERATORS
            ),
        )

    def _remembered(self, number: int, until: int) -> StepResult:
        """A step of those that are watched together: one, or as many as fill the
        pipeline."""
        if self._watching is None:
            self.trainer.forget()
            self._watching = watched(self.trainer.device)
            self._seen = self._watching.__enter__()
        result = self.trainer.step(number, until=until)
        if number == until - 1:
            self._watching.__exit__(None, None, None)
            self._watching, self.peak = None, self._seen
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
