"""What a run was seen to do: times, losses and memory, as `execute --json` prints.

What the ranks saw of a run's parts, as members of its document.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
import torch

from profiles.models import Job
from runtime.observe.aten_operators import operators
from runtime.observe.rank_reports import Report, exchanges, parts, sends
from runtime.observe.samples import document, summary
from runtime.trace import Peak
from runtime.train import StepResult


def told(
    reports: Sequence[Report] | None, job: Job, step_s: float, *, device: str
) -> dict[str, Any]:
    """`parts_s`, `exchanges` and `operators`; nothing of a run too short to tell."""
    if reports is None:
        return {}
    local = int(os.environ.get("LOCAL_WORLD_SIZE", len(reports)))
    found = exchanges(reports, local)
    # Clocks of several machines, or of several GPUs' streams, do not compare.
    one_clock = device == "cpu" and local == len(reports)
    message = sends(reports, local) if one_clock else None
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
                "kind": one.kind,
                "direction": one.direction,
                "shape": list(one.shape),
                "precision": one.precision,
                "ranks": local,
                **summary(seconds),
            }
            for one, seconds in heard.items()
        ],
    }


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

    def step_time_s(self) -> dict[str, float]:
        """Median, p10 and p90 of the timed steps."""
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
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu(seconds["median"]),
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
