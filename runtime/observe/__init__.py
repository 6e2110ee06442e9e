"""What a run measured, compared with its prediction."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.observe.metrics_log import Journal, journals, require_journals
    from runtime.observe.prediction import Prediction, largest, predict
    from runtime.observe.run_summary import (
        WARM_UP_STEPS,
        Observed,
        StepProfiler,
        everyone,
        measured_parts,
        untimed_steps,
        write_actions,
    )

__all__, __getattr__ = public(__name__, __file__)
