"""Measures this machine: operators, collectives, transfers, drives."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.measure.machine import device_name, multiplies, spread
    from profiles.measure.options import MeasureOptions, measure_options
    from profiles.measure.session import measure, resolved
    from profiles.measure.tables import BACKEND, trimmed_mean

__all__, __getattr__ = public(__name__, __file__)
