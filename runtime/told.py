"""What the ranks saw of a run's parts, as members of its document."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from profiles.job import Job
from runtime.heard import operators
from runtime.sampling import document, summary
from runtime.seen import Report, exchanges, parts, sends


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
