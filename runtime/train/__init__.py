"""The trainer: composition of mechanisms, steps, evaluation."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from runtime.train.build import Setup
    from runtime.train.compile import require_compilable
    from runtime.train.options import Training, learning_rate, training_options
    from runtime.train.trainer import StepResult, Trainer, rank_stream

__all__ = [
    "Setup",
    "StepResult",
    "Trainer",
    "Training",
    "learning_rate",
    "rank_stream",
    "require_compilable",
    "training_options",
]

__getattr__ = lazily(__name__, __file__)
