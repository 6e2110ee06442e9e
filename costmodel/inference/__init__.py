"""What serving costs: prefill, decoding, the key-value cache, memory."""

from costmodel.inference.command import answer

__all__ = [
    "answer",
]
