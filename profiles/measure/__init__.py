"""Measures this machine: operators, collectives, transfers, drives."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from profiles.measure.machine import device_name, multiplies
    from profiles.measure.noise import spread
    from profiles.measure.request import Wish, resolved
    from profiles.measure.session import measure
    from profiles.measure.tables import BACKEND, trimmed_mean

__all__ = [
    "BACKEND",
    "Wish",
    "device_name",
    "measure",
    "multiplies",
    "resolved",
    "spread",
    "trimmed_mean",
]

__getattr__ = lazily(__name__, __file__)
