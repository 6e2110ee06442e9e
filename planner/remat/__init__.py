"""Recomputation and offload of a chain: Rotor, POFO and an integer program."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from planner.remat.least_peak import first_fit, free, leanest

__all__ = [
    "first_fit",
    "free",
    "leanest",
]

__getattr__ = lazily(__name__, __file__)
