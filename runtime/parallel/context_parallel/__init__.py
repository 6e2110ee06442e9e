"""Attention over sequences split across ranks."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.parallel.context_parallel.all_gather import GatheredCore
    from runtime.parallel.context_parallel.apply import Context
    from runtime.parallel.context_parallel.ring import RingCore
    from runtime.parallel.context_parallel.ulysses import UlyssesCore

__all__, __getattr__ = public(__name__, __file__)
