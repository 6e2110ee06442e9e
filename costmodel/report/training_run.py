"""A whole training run: how long, how much compute, and what that takes and costs."""

from __future__ import annotations

from typing import Any

from costmodel.report.batch_ramp import Ramped
from costmodel.simulation import Estimate, total_compute_flops
from profiles.models import parameters
from profiles.units import DAY_S, HOUR_S, PFLOPS_DAY_FLOPS

BROWN = "6 FLOPs a parameter and token, attention left out"


def training(
    found: Estimate, tokens: float, ramped: Ramped | None = None
) -> dict[str, Any]:
    """Steps, days, device-hours, dollars and FLOPs of training *tokens* tokens at this
    step, or where the batch is *ramped*, at each batch's."""
    level_s = tokens / found.job.tokens * found.step_time_s
    steps = tokens / found.job.tokens if ramped is None else sum(ramped.steps.values())
    seconds = level_s if ramped is None else ramped.seconds
    device_hours = seconds * found.layout.gpus / HOUR_S
    return {
        "tokens": tokens,
        "steps": steps,
        "days": seconds / DAY_S,
        "device_hours": device_hours,
        "dollars": None
        if found.device_cost is None
        else device_hours * found.device_cost,
        "energy_kwh": None
        if found.device_power_w is None
        else device_hours * found.device_power_w / 1e3,
        "compute": compute(found, tokens),
        "rampup": None if ramped is None else _rampup(ramped, level_s),
    }


def compute(found: Estimate, tokens: float) -> dict[str, Any]:
    """Total FLOPs of *tokens* tokens: as Brown et al. (2020) count them for every model
    of their appendix D, and by the convention of the estimate."""
    met = parameters(found.job.spec).active
    own = found.model_flops * tokens / found.job.tokens
    return {
        "parameters": met,
        "by_parameters": _total(total_compute_flops(met, tokens), BROWN),
        "by_operators": _total(own, str(found.counted)),
    }


def _total(flops: float, convention: str) -> dict[str, Any]:
    return {
        "flops": flops,
        "pf_days": flops / PFLOPS_DAY_FLOPS,
        "convention": convention,
    }


def _rampup(ramped: Ramped, level_s: float) -> dict[str, Any]:
    """The ramp, its batches, and by what share the run is longer than at one batch."""
    ramp = ramped.ramp
    return {
        "start": ramp.start,
        "increment": ramp.increment,
        "samples": ramp.samples,
        "batches": [
            {
                "global_batch": batch,
                "steps": count,
                "step_time_s": ramped.step_time_s[batch],
            }
            for batch, count in ramped.steps.items()
        ],
        "added": ramped.seconds / level_s - 1,
    }
