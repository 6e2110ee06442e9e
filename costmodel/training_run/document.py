"""A whole training run: how long, how much compute, what it costs, what fails."""

from __future__ import annotations

from typing import Any, Final

from costmodel.options import RunOptions
from costmodel.simulation import Answer, total_compute_flops
from costmodel.training_run.batch_ramp import Ramped
from costmodel.training_run.cost import assumed_of_cost, cost
from costmodel.training_run.failures import failures
from costmodel.training_run.jitter import jitter
from profiles.models import parameters
from profiles.units import DAY_S, HOUR_S, PFLOPS_DAY_FLOPS

BROWN: Final = "6 FLOPs a parameter and token, attention left out"
EVAL_ITERS: Final = 100  # Megatron-LM's


def training(
    found: Answer, run: RunOptions, ramped: Ramped | None = None
) -> dict[str, Any]:
    """What the tokens of *run* take at this step, or where the batch is *ramped*, at
    each batch's: days and cost without failures, and in `failures` with them."""
    tokens = run.tokens
    assert tokens is not None
    level_s = tokens / found.job.tokens * found.step_time_s
    steps = tokens / found.job.tokens if ramped is None else sum(ramped.steps.values())
    seconds = level_s if ramped is None else ramped.seconds
    waits = None if run.step_jitter is None else jitter(found, run.step_jitter)
    seconds *= 1 + (0.0 if waits is None else waits["added"])
    evaluated = _evaluation(found, steps, run)
    seconds += 0.0 if evaluated is None else evaluated["days"] * DAY_S
    return {
        "tokens": tokens,
        "unit": found.job.unit,
        "steps": steps,
        "days": seconds / DAY_S,
        **cost(found, seconds * found.layout.gpus / HOUR_S, run),
        "compute": compute(found, tokens),
        "rampup": None if ramped is None else _rampup(ramped, level_s),
        "evaluation": evaluated,
        "jitter": waits,
        "failures": _failures(found, seconds, run),
        "assumed": assumed_of_cost(run),
    }


def whole_run(found: Answer, run: RunOptions) -> dict[str, Any]:
    """Days and cost of the tokens of *run*, with failures where they are known; then
    `days` is None where they leave no time to train, and the cost is left out."""
    whole = training(found, run)
    lost: dict[str, Any] | None = whole["failures"]
    return lost or whole


def _failures(found: Answer, seconds: float, run: RunOptions) -> dict[str, Any] | None:
    """With what they cost, spare nodes among it."""
    lost = failures(found, seconds, run)
    if lost is None or lost["days"] is None or found.reliability is None:
        return lost
    known = found.reliability
    devices = found.layout.gpus + (run.spare_nodes or 0) * known.devices_per_node
    return {**lost, **cost(found, lost["days"] * DAY_S / HOUR_S * devices, run)}


def eval_step_s(found: Answer) -> float:
    """Seconds of a global batch forward alone: a third of forward and backward, and the
    same share of it in the bubble."""
    parts = dict(found.breakdown_s)
    bubble_s, again_s = parts.pop("bubble"), parts.pop("recompute")
    for ending in ("data_comm", "optimizer", "offload"):
        parts.pop(ending)
    passes_s = sum(parts.values())
    return passes_s / 3 * (1 + bubble_s / (passes_s + again_s))


def _evaluation(found: Answer, steps: float, run: RunOptions) -> dict[str, Any] | None:
    """Every `--eval-interval` steps and once at the end, as Megatron-LM does."""
    if run.eval_interval is None:
        return None
    iters = EVAL_ITERS if run.eval_iters is None else run.eval_iters
    times = int(steps // run.eval_interval) + 1
    each_s = eval_step_s(found)
    return {
        "evaluations": times,
        "iters": iters,
        "step_time_s": each_s,
        "days": times * iters * each_s / DAY_S,
    }


def compute(found: Answer, tokens: float) -> dict[str, Any]:
    """Total FLOPs of *tokens* tokens: as Brown et al. (2020) count them for every model
    of their appendix D, and by the convention of the estimate. A parameter of an image
    model works at many places of an image, so the first is None."""
    met = parameters(found.job.spec).active
    own = found.model_flops * tokens / found.job.tokens
    return {
        "parameters": met,
        "by_parameters": _total(total_compute_flops(met, tokens), BROWN)
        if found.job.unit == "tokens"
        else None,
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
