"""Prices: a layout, and what it costs in seconds and bytes. Command: `simulate`."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from costmodel.simulation import estimate

__all__ = ["estimate"]

__getattr__ = lazily(__name__, __file__)
