"""State saved, read and resharded."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from runtime.checkpoint.directory import latest

__all__ = [
    "latest",
]

__getattr__ = lazily(__name__, __file__)
