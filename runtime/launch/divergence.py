"""What a run does about a loss that is not finite: `--on-nan stop` or `rollback`.

A rollback goes to the newest checkpoint and leaves out the batch whose step it was;
where that does not help, all batches since the checkpoint; then the run stops. What is
left out stays out: it is kept in checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

from runtime.train import StepResult, batch_of

MOST_FROM_ONE: Final = 2  # rollbacks to one checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """From a step (counted from 1) whose loss was not finite to a checkpoint."""

    step: int
    to: int  # steps done then
    skipped: tuple[int, ...]  # batches, counted from 0

    def __str__(self) -> str:
        batches = ", ".join(map(str, self.skipped[:4]))
        more = ", …" if len(self.skipped) > 4 else ""
        return (
            f"the loss of step {self.step} is not finite: back to the checkpoint of "
            f"step {self.to}, without batch {batches}{more}"
        )


@dataclass(slots=True)
class Rollbacks:
    """Those of a run, and the batches that it leaves out."""

    done: list[Rollback] = field(default_factory=list)
    skipped: tuple[int, ...] = ()

    def next(self, number: int, to: int) -> Rollback | None:
        """The one after step *number* (from 0) went wrong, with *to* steps in the
        checkpoint; None where the run had better stop."""
        before = sum(one.to == to for one in self.done)
        if before == MOST_FROM_ONE:
            return None
        steps = range(to if before else number, number + 1)
        found = Rollback(
            step=number + 1,
            to=to,
            skipped=tuple(batch_of(one, self.skipped) for one in steps),
        )
        self.done.append(found)
        self.skipped = tuple(sorted({*self.skipped, *found.skipped}))
        return found

    def resumed(self, skipped: Sequence[int]) -> None:
        """A checkpoint was read that was trained without *skipped*."""
        self.skipped = tuple(sorted({*self.skipped, *skipped}))


def wrong(number: int, result: StepResult) -> dict[str, Any]:
    """What was not finite in step *number* (from 0): `stopped` of a run's document."""
    of_loss = not isfinite(result.loss)
    return {"step": number + 1, "not_finite": "loss" if of_loss else "gradient norm"}
