"""1F1B over stages of unequal layer counts: every cut of the layers, bounded."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from planner.cuts.search import are_searched, cuts_do_not_fit, with_cuts

__all__, __getattr__ = public(__name__, __file__)
