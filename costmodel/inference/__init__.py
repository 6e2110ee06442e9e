"""What serving costs: prefill, decoding, the key-value cache, memory."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.inference.report import answer

__all__, __getattr__ = public(__name__, __file__)
