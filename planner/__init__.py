"""Choices: which layout to take, and the proof that no other is better.

`plan` is the front door; its room opens when the name is first used, so that importing
the package loads no solver.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.plan import plan

__all__ = ["plan"]


class _FrontDoor(ModuleType):
    """A property, since importing the room `plan` sets the attribute of that name on
    the package: it must not hide the function behind its module."""

    @property
    def plan(self) -> Any:
        return import_module("planner.plan").plan

    @plan.setter
    def plan(self, room: ModuleType) -> None: ...


sys.modules[__name__].__class__ = _FrontDoor
