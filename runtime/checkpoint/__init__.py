"""State saved, read and resharded."""

from runtime.checkpoint.directory import latest

__all__ = [
    "latest",
]
