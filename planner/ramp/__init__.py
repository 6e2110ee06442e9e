"""A plan for a batch that grows: best over all of its steps, or one a phase."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from planner.ramp.choice import OverRamp, over_ramp
    from planner.ramp.report import ramp_document, ramp_lines

__all__, __getattr__ = public(__name__, __file__)
