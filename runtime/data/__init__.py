"""Batches that resume exactly: tokens, text, synthetic streams."""

from runtime.data.sources import HeldOut, Source, fingerprint, source
from runtime.data.token_files import absolute

__all__ = [
    "HeldOut",
    "Source",
    "absolute",
    "fingerprint",
    "source",
]
