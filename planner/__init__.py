"""Choices: which layout to take, and the proof that no other is better."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import plan
    from planner.result import Plan

__all__ = ["Plan", "plan"]
_HOMES = {"Plan": "planner.result", "plan": "planner.api"}


def __getattr__(name: str) -> Any:
    """The public names; what they need is imported when one is first used."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
