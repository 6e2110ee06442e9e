"""`Training`: what a run does beside its steps, as a command line asks for it.

The options of `execute` about what a run does beside its steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.commandline import (
    Choice,
    FloatRange,
    IntRange,
    collected,
    option,
    text,
)
from profiles.errors import Contradiction
from profiles.files import require_package
from runtime.data import absolute
from runtime.optim import KINDS, LearningRate

if TYPE_CHECKING:
    from runtime.optim import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Learning rate over the steps, evaluation, logs and a trace; files by path."""

    lr_schedule: str = option(
        default="constant", type=Choice(KINDS), help="The learning rate over the steps."
    )
    warmup_steps: int = option(
        default=0, type=IntRange(0), help="Steps in which the rate rises to --lr."
    )
    decay_steps: int | None = option(
        type=IntRange(1), help="Steps that the schedule is over, if not --steps."
    )
    min_lr: float = option(
        default=0.0, type=FloatRange(0, 10), help="Where a schedule ends."
    )
    eval_data: str | None = option(
        type=text, metavar="FILE|synthetic", help="Held-out data to evaluate on."
    )
    eval_every: int | None = option(
        type=IntRange(1),
        help="Steps from one evaluation to the next.  [default: at the end]",
    )
    eval_batches: int = option(
        default=1, type=IntRange(1, 10**6), help="Global batches in an evaluation."
    )
    log: str | None = option(type=text, metavar="FILE", help="One line of JSON a step.")
    tensorboard: str | None = option(
        type=text, metavar="DIR", help="The same for TensorBoard (package tensorboard)."
    )
    trace: str | None = option(
        type=text,
        metavar="DIR",
        help="Trace one step of each rank with torch.profiler: DIR/rank-0.json …",
    )

    def resolved(self) -> Training:
        """The same with absolute paths, for workers in another folder."""
        return replace(
            self,
            eval_data=self.eval_data and absolute(self.eval_data),
            log=_absolute(self.log),
            tensorboard=_absolute(self.tensorboard),
            trace=_absolute(self.trace),
        )

    def require(self) -> None:
        """Raise what is wrong with it: Contradiction, or Unsupported for a package."""
        if self.eval_every and self.eval_data is None:
            raise Contradiction("--eval-every needs --eval-data FILE|synthetic")
        for flag, given, folder in (
            ("--log", self.log, False),
            ("--tensorboard", self.tensorboard, True),
            ("--trace", self.trace, True),
        ):
            if given and Path(given).exists() and Path(given).is_dir() != folder:
                raise Contradiction(
                    f"{flag} {given} is {'no' if folder else 'a'} folder; name "
                    f"{'one' if folder else 'a file'}"
                )
        if self.tensorboard:
            require_package("tensorboard", "--tensorboard", extra="tensorboard")


def learning_rate(settings: Settings, training: Training, steps: int) -> LearningRate:
    """The rate of every step; raises Contradiction for one that cannot be."""
    return LearningRate(
        lr=settings.lr,
        steps=training.decay_steps or steps,
        kind=training.lr_schedule,
        warmup_steps=training.warmup_steps,
        least=training.min_lr,
    )


def _absolute(given: str | None) -> str | None:
    return given and str(Path(given).absolute())


training_options = collected("Training", Training, "training")
