"""Batches that resume exactly: tokens, text, synthetic streams."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.data.names import SYNTHETIC, absolute
    from runtime.data.sources import Source, fingerprint, source

__all__, __getattr__ = public(__name__, __file__)
