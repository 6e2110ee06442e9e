"""Several jobs on one cluster: which gets how many GPUs, and when."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from planner.jobs.command import answer

__all__, __getattr__ = public(__name__, __file__)
