"""A whole training run: its time, money, energy, failures, and a growing batch."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.training_run.batch_ramp import BatchRamp, Ramped, ramped
    from costmodel.training_run.document import training, whole_run
    from costmodel.training_run.failures import RESTART_S
    from costmodel.training_run.goodput import FailureModel
    from costmodel.training_run.lines import training_rows
    from costmodel.training_run.monte_carlo import Drawn, drawn
    from costmodel.training_run.spares import Pool

__all__, __getattr__ = public(__name__, __file__)
