"""Stages that differ in mesh: a programme over cuts and meshes, with a bound."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from planner.heterogeneous.homogenized import over_islands
    from planner.heterogeneous.search import (
        alike_alone,
        any_fits,
        require_possible,
        stages_alone,
        widened,
    )

__all__ = [
    "alike_alone",
    "any_fits",
    "over_islands",
    "require_possible",
    "stages_alone",
    "widened",
]

__getattr__ = lazily(__name__, __file__)
