"""Tables of runs: priced, and compared with what was measured."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.runs.calibrate import calibrate
    from costmodel.runs.calibration_files import (
        calibration_of,
        read_calibration,
        write_calibration,
    )
    from costmodel.runs.comparison import Compared
    from costmodel.runs.summary import oom_words, summary_view
    from costmodel.runs.table import read_runs
    from costmodel.runs.validate import compare, document, whole_summary

__all__, __getattr__ = public(__name__, __file__)
