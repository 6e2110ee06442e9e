"""The smallest share of kept activations to offload that makes a layout fit.

Bytes on a rank are linear in the ratio α: what is kept falls by α, the buffers of the
copies under way rise by it. So with M(0) and M(1) simulated

    α = (M(0) − limit) / (M(0) − M(1))      on the rank where that is largest

(Yuan et al., ATC 2024, section 4.2: the discrete choices are enumerated, α is solved
for.) Copies cost time only beyond what a pass hides, so that the smallest ratio is the
best one.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

from costmodel.estimate import Estimate, estimate
from costmodel.machine import Machine
from costmodel.uniform import Uniform, spell_out
from profiles.job import Job

STEPS: Final = 1000  # ratios are told in thousandths, rounded up


def smallest_ratio(
    kept_bytes: float, away_bytes: float, limit_bytes: float
) -> float | None:
    """The least α with which a rank that needs *kept_bytes* at α = 0 and *away_bytes*
    at 1 stays within *limit_bytes*; None if even 1 is too little.

    >>> smallest_ratio(100.0, 60.0, 80.0)
    0.5
    """
    if kept_bytes <= limit_bytes:
        return 0.0
    if away_bytes > limit_bytes:
        return None
    exact = (kept_bytes - limit_bytes) / (kept_bytes - away_bytes)
    return min(1.0, ceil(exact * STEPS - 1e-9) / STEPS)


def with_offload(
    choice: Uniform, job: Job, on: Machine, limit_bytes: float
) -> Estimate | None:
    """*choice* with the smallest ratio of offloaded activations that fits in
    *limit_bytes*, as simulated; None if none does."""
    found = with_ratio(choice, job, on, limit_bytes)
    if found is None:
        return None
    best = _priced(found, job, on, found.offload.activations)
    return best if best.peak_secured_bytes <= limit_bytes else None


def with_ratio(
    choice: Uniform, job: Job, on: Machine, limit_bytes: float
) -> Uniform | None:
    """*choice* with the smallest ratio by the closed form; None if 1 is too little."""
    kept, away = (_priced(choice, job, on, ratio) for ratio in (0.0, 1.0))
    ratios = [
        smallest_ratio(float(before.secured), float(after.secured), limit_bytes)
        for before, after in zip(kept.memory, away.memory, strict=True)
    ]
    found = [one for one in ratios if one is not None]
    if len(found) < len(ratios):
        return None
    return replace(choice, offload=replace(choice.offload, activations=max(found)))


def _priced(choice: Uniform, job: Job, on: Machine, ratio: float) -> Estimate:
    offload = replace(choice.offload, activations=ratio)
    layout = spell_out(replace(choice, offload=offload), job.graph, job.global_batch)
    return estimate(job, on.cluster, layout, on=on)
