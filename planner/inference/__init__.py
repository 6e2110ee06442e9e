"""The cheapest way to serve a model within latencies: every layout, compared."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from planner.inference.options import LatencyOptions, latency_options
    from planner.inference.report import Shown, answer

__all__, __getattr__ = public(__name__, __file__)
