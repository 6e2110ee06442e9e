"""Pages of an answer that stand alone: charts, drawings and tables in one HTML file."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.pages.charts import (
        SCRIPTS,
        STYLE,
        figures,
        require_bokeh,
        script,
        style,
    )
    from costmodel.pages.curves import MOST_LINES, Curves, curves_page
    from costmodel.pages.fragments import (
        Section,
        chart,
        estimate_sections,
        facts,
        labelled,
        rows,
        sentence,
    )
    from costmodel.pages.page import estimate_page, whole_page
    from costmodel.pages.series import MOST_ACTIONS, encoded, estimate_series
    from costmodel.pages.sweep import sweep_page

__all__, __getattr__ = public(__name__, __file__)
