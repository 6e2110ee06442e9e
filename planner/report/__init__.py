"""What `plan` shows: tables, documents, progress."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from planner.report.document import (
        answer_document,
        bound_document,
        nothing_document,
        premise_document,
        search_document,
    )
    from planner.report.extras import (
        Beside,
        beside,
        calibrated,
        probes_beside,
        require_answerable,
    )
    from planner.report.frameworks import in_others
    from planner.report.page import (
        alternatives_section,
        front,
        front_section,
        plan_page,
    )
    from planner.report.progress import metered
    from planner.report.scaling import (
        sizes_document,
        sizes_page,
        sizes_table,
        sizes_words,
    )
    from planner.report.tables import plan_view, searches_table
    from planner.report.versus import versus_layouts, versus_table, versus_words

__all__, __getattr__ = public(__name__, __file__)
