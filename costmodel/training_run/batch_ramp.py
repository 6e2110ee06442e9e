"""A batch that grows: Megatron-LM's `--rampup-batch-size`, and what its steps take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from costmodel.machine import Machine
from costmodel.options import RunOptions
from costmodel.simulation import Answer, answers
from costmodel.support import MOST_PASSES
from profiles.errors import Contradiction, InvalidSpec, MeshwrightError

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

    @classmethod
    def of(cls, run: RunOptions) -> BatchRamp | None:
        """The one that was asked for."""
        if run.rampup is None:
            return None
        start, increment, samples = run.rampup
        return cls(start=start, increment=increment, samples=samples)

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
    """A ramp whose batches are priced: seconds and number of the steps of each; and
    seconds between phases that have layouts of their own."""

    ramp: BatchRamp
    steps: dict[int, float]
    step_time_s: dict[int, float]
    replans_s: float = 0.0

    @property
    def seconds(self) -> float:
        own = self.step_time_s
        return self.replans_s + sum(n * own[one] for one, n in self.steps.items())


def ramped(found: Answer, on: Machine, ramp: BatchRamp, tokens: float) -> Ramped:
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


def _require_divided(found: Answer, ramp: BatchRamp) -> None:
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


def _step_times(found: Answer, on: Machine, batches: Iterable[int]) -> dict[int, float]:
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
