"""What `simulate` shows: tables, pages, whole runs."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.report.calibration import calibration_lines, calibration_view
    from costmodel.report.html_page import runs_page
    from costmodel.report.networks import RADIX
    from costmodel.report.svg import gantt
    from costmodel.report.tables import (
        assumed_words,
        breakdown_words,
        bytes_table,
        cut_words,
        estimate_view,
        extras,
        headline,
        layout_words,
        memory_table,
        pairs_table,
    )

__all__, __getattr__ = public(__name__, __file__)
