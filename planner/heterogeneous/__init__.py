"""Stages that differ in mesh: a programme over cuts and meshes, with a bound."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from planner.heterogeneous.homogenized import over_islands
    from planner.heterogeneous.search import (
        alike_alone,
        any_fits,
        require_possible,
        stages_alone,
        widened,
    )

__all__, __getattr__ = public(__name__, __file__)
