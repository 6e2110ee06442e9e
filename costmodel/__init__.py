"""Prices: a layout, and what it costs in seconds and bytes. Command: `simulate`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from costmodel.runs import calibrate
    from costmodel.simulation import estimate, simulate

__all__ = ["calibrate", "estimate", "simulate"]
_HOMES = {
    "calibrate": "costmodel.runs",
    "estimate": "costmodel.simulation",
    "simulate": "costmodel.simulation",
}


def __getattr__(name: str) -> Any:
    """The public names; what they need is imported when one is first used."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
