"""Recomputation and offload of a chain: Rotor, POFO and an integer program."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from planner.remat.least_peak import first_fit, free, leanest

__all__, __getattr__ = public(__name__, __file__)
