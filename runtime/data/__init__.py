"""Batches that resume exactly: tokens, text, synthetic streams."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from runtime.data.names import absolute
    from runtime.data.sources import Source, fingerprint, source

__all__ = [
    "Source",
    "absolute",
    "fingerprint",
    "source",
]

__getattr__ = lazily(__name__, __file__)
