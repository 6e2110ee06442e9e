"""Prices: a layout, and what it costs in seconds and bytes. Command: `simulate`.

`estimate` is the front door; its room opens when a name is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["estimate"]


class _FrontDoor(ModuleType):
    """A property, since importing the room `estimate` sets the attribute of that name
    on the package: it must not hide the function behind its module."""

    @property
    def estimate(self) -> Any:
        return import_module("costmodel.estimate").estimate

    @estimate.setter
    def estimate(self, room: ModuleType) -> None: ...


sys.modules[__name__].__class__ = _FrontDoor
