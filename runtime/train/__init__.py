"""The trainer: composition of mechanisms, steps, evaluation."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.train.activation_bits import ActivationBits, compresses
    from runtime.train.build import Setup
    from runtime.train.compile import require_compilable
    from runtime.train.gradients import require_compressible
    from runtime.train.memory_budget import require_rematerializable
    from runtime.train.module_build import samples
    from runtime.train.options import (
        Options,
        RunOptions,
        Training,
        require_allowed,
        run_options,
        training_options,
    )
    from runtime.train.stale import Late
    from runtime.train.trainer import StepResult, Trainer, batch_of, rank_stream

__all__, __getattr__ = public(__name__, __file__)
