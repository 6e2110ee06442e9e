"""1F1B over stages of unequal layer counts: every cut of the layers, bounded."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from planner.cuts.search import are_searched, cuts_do_not_fit, with_cuts

__all__ = [
    "are_searched",
    "cuts_do_not_fit",
    "with_cuts",
]

__getattr__ = lazily(__name__, __file__)
