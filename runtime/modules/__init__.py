"""A user's own module as stages: its traced graph, cut where the plan cuts layers."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.modules.cut import Cut, cut_of
    from runtime.modules.samples import Samples, Tokens
    from runtime.modules.stage import TracedStage
    from runtime.modules.whole import WholeStage

__all__, __getattr__ = public(__name__, __file__)
