"""Recomputation and offload of a chain: Rotor, POFO and an integer program."""

from planner.remat.least_peak import first_fit, free, leanest

__all__ = [
    "first_fit",
    "free",
    "leanest",
]
