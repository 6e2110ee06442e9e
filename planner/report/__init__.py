"""What `plan` shows: tables, documents, progress."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from planner.report.document import (
        answer_document,
        bound_document,
        nothing_document,
        premise_document,
        search_document,
    )
    from planner.report.extras import Beside, beside, probes_beside, require_answerable
    from planner.report.frameworks import in_others
    from planner.report.progress import metered
    from planner.report.scaling import sizes_document, sizes_table, sizes_words
    from planner.report.tables import plan_view, searches_table

__all__ = [
    "Beside",
    "answer_document",
    "beside",
    "bound_document",
    "in_others",
    "metered",
    "nothing_document",
    "plan_view",
    "premise_document",
    "probes_beside",
    "require_answerable",
    "search_document",
    "searches_table",
    "sizes_document",
    "sizes_table",
    "sizes_words",
]

__getattr__ = lazily(__name__, __file__)
