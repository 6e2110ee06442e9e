"""Deeds: a layout executed by PyTorch on real devices. Command: `execute`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.api import parallelize

__all__ = ["parallelize"]


def __getattr__(name: str) -> Any:
    """The public names; what they need is imported when one is first used."""
    if name in __all__:
        return getattr(import_module("runtime.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
