"""What serving costs: prefill, decoding, the key-value cache, memory."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from costmodel.inference.report import answer

__all__ = [
    "answer",
]

__getattr__ = lazily(__name__, __file__)
