"""1F1B over stages of unequal layer counts: every cut of the layers, bounded."""

from planner.cuts.search import are_searched, cuts_do_not_fit, with_cuts

__all__ = [
    "are_searched",
    "cuts_do_not_fit",
    "with_cuts",
]
