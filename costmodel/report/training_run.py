"""A whole training run: how long, how much compute, and what that takes and costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from costmodel.goodput import FailureModel
from costmodel.machine import Machine
from costmodel.simulation import Estimate, answers, total_compute_flops
from costmodel.support import MOST_PASSES
from profiles.errors import Contradiction, InvalidSpec, MeshwrightError
from profiles.models import parameters
from profiles.units import DAY_S, HOUR_S, PFLOPS_DAY_FLOPS

OPTION = "--rampup-batch-size"
MOST_BATCHES = 10_000
MOST_RAMP_PASSES = 10 * MOST_PASSES


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRamp:
    """From *start* sequences a step to the job's batch, by *increment* each, at equal
    shares of the first *samples* sequences."""

    start: int
    increment: int
    samples: int

    def batches(self, global_batch: int) -> range:
        """Every batch of the ramp, the job's own last.

        Raises Contradiction where increments do not lead from the first to the last.
        """
        more = global_batch - self.start
        if more <= 0:
            raise Contradiction(
                f"{OPTION} starts with {self.start} sequences a step, and the global "
                f"batch is {global_batch}: start below it"
            )
        if more % self.increment:
            raise Contradiction(
                f"{OPTION}: increments of {self.increment} do not lead from "
                f"{self.start} to the global batch {global_batch}; choose a divisor of "
                f"{more}"
            )
        if more // self.increment >= MOST_BATCHES:
            raise InvalidSpec(
                f"{OPTION} has {more // self.increment + 1:,} batches, most "
                f"{MOST_BATCHES:,}: choose a larger increment than {self.increment}"
            )
        return range(self.start, global_batch + 1, self.increment)

    def steps(self, global_batch: int, sequences: float) -> dict[int, float]:
        """How many steps of each batch a run of so many *sequences* has; of the last
        one the part that is left. A step may be so large that a batch is left out.

        >>> BatchRamp(start=2, increment=2, samples=20).steps(6, sequences=52)
        {2: 5.0, 4: 3.0, 6: 5.0}
        """
        *rising, full = self.batches(global_batch)
        seen, found = 0, dict[int, float]()
        for number, batch in enumerate(rising, 1):
            until = -(-number * self.samples // len(rising))
            count = max(-(-(until - seen) // batch), 0)
            if seen + count * batch >= sequences:
                return {**found, batch: (sequences - seen) / batch}
            if count:
                found[batch] = float(count)
                seen += count * batch
        return {**found, full: (sequences - seen) / full}


@dataclass(frozen=True, kw_only=True)
class Ramped:
    """A ramp whose batches are priced: seconds and number of the steps of each."""

    ramp: BatchRamp
    steps: dict[int, float]
    step_time_s: dict[int, float]

    @property
    def seconds(self) -> float:
        return sum(count * self.step_time_s[one] for one, count in self.steps.items())


def ramped(found: Estimate, on: Machine, ramp: BatchRamp, tokens: float) -> Ramped:
    """A run of *tokens* tokens with *ramp*, by the layout that was *found* on a
    machine.

    Raises Contradiction for a batch that the layout cannot run.
    """
    job = found.job
    _require_divided(found, ramp)
    steps = ramp.steps(job.global_batch, tokens / job.seq_len)
    fewer = [batch for batch in steps if batch != job.global_batch]
    step_time_s = _step_times(found, on, fewer)
    step_time_s[job.global_batch] = found.step_time_s
    return Ramped(ramp=ramp, steps=steps, step_time_s=step_time_s)


def _require_divided(found: Estimate, ramp: BatchRamp) -> None:
    """Raise Contradiction unless every batch is whole micro-batches, as the layout
    splits it (Megatron-LM stops at the first that is not)."""
    each = found.job.global_batch // found.layout.micro_batches
    batches = ramp.batches(found.job.global_batch)
    wrong = [batch for batch in batches if batch % each]
    if wrong:
        shown = ", ".join(map(str, wrong[:3])) + (", …" if len(wrong) > 3 else "")
        raise Contradiction(
            f"{OPTION}: a batch of {shown} is not a multiple of {each}, the sequences "
            "of one micro-batch on all data-parallel ranks; choose multiples of it as "
            "START and INCREMENT, or a smaller micro-batch or dp"
        )
    passes = 2 * len(found.layout.stages) * sum(batch // each for batch in batches)
    if passes > MOST_RAMP_PASSES:
        raise InvalidSpec(
            f"{OPTION}: its {len(batches):,} batches are {passes:,} passes to "
            f"simulate, most {MOST_RAMP_PASSES:,}: choose a larger increment"
        )


def _step_times(
    found: Estimate, on: Machine, batches: Iterable[int]
) -> dict[int, float]:
    """Seconds of a step of each batch, in as many of the layout's micro-batches."""
    job, layout = found.job, found.layout
    each = job.global_batch // layout.micro_batches
    sizes = list(batches)
    asked = [
        (
            replace(job, global_batch=size),
            replace(layout, global_batch=size, micro_batches=size // each),
            on,
        )
        for size in sizes
    ]
    seconds = {}
    for size, answer in zip(sizes, answers(asked), strict=True):
        if isinstance(answer, MeshwrightError):
            raise Contradiction(
                f"{OPTION}: with a batch of {size} the layout cannot run: {answer}"
            )
        seconds[size] = answer.step_time_s
    return seconds


STATE_BYTES = 4  # of a parameter's master, and of each of its moments
RESTART_S = 600.0  # [assumed] from a failure to the first step after it
WRITE_BYTES_PER_S = 0.25e9  # [assumed] a device's share of shared storage
BROWN = "6 FLOPs a parameter and token, attention left out"


def training(
    found: Estimate, tokens: float, ramped: Ramped | None = None
) -> dict[str, Any]:
    """Steps, days, device-hours, dollars, FLOPs and failures of *tokens* tokens at this
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
        "failures": failures(found, seconds),
    }


def failures(found: Estimate, seconds: float) -> dict[str, Any] | None:
    """What failures of nodes add to *seconds* of training, with a checkpoint as often
    as is best (Daly); None where the cluster does not say how often its nodes fail."""
    known = found.reliability
    if known is None:
        return None
    size_bytes = (
        parameters(found.job.spec).trained * STATE_BYTES * (1 + found.job.moments)
    )
    nodes_bytes_per_s = known.drives_bytes_per_s
    assumed = {"restart_s": RESTART_S}
    if nodes_bytes_per_s is None:
        nodes_bytes_per_s = found.layout.gpus * WRITE_BYTES_PER_S
        assumed["write_bytes_per_s_per_device"] = WRITE_BYTES_PER_S
    model = FailureModel(
        mtbf_s=1 / known.failures_per_s,
        checkpoint_s=size_bytes / nodes_bytes_per_s,
        restart_s=RESTART_S,
    )
    interval_s = model.daly_interval_s
    goodput = model.goodput(interval_s)
    return {
        "mtbf_h": model.mtbf_s / HOUR_S,
        "expected": seconds * known.failures_per_s / goodput if goodput else None,
        "checkpoint_bytes": size_bytes,
        "checkpoint_s": model.checkpoint_s,
        "interval_s": interval_s,
        "goodput": goodput,
        "days": seconds / goodput / DAY_S if goodput else None,
        "assumed": assumed,
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
