"""`Training`: what a run does beside its steps, as a command line asks for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.documents import require_package
from profiles.errors import Contradiction
from runtime.data.names import absolute
from runtime.learning_rate import LearningRate

if TYPE_CHECKING:
    from runtime.optimizer import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Learning rate over the steps, evaluation, logs and a trace; files by path."""

    lr_schedule: str = "constant"
    warmup_steps: int = 0
    decay_steps: int | None = None  # None: all steps of the run
    min_lr: float = 0.0
    eval_data: str | None = None
    eval_every: int | None = None  # None: once, at the end
    eval_batches: int = 1
    log: str | None = None
    tensorboard: str | None = None
    trace: str | None = None

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
        for option, given, folder in (
            ("--log", self.log, False),
            ("--tensorboard", self.tensorboard, True),
            ("--trace", self.trace, True),
        ):
            if given and Path(given).exists() and Path(given).is_dir() != folder:
                raise Contradiction(
                    f"{option} {given} is {'no' if folder else 'a'} folder; name "
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
