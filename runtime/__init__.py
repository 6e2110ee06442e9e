"""Deeds: a layout carried out by PyTorch on real devices. Command: `execute`.

`parallelize` is the front door; its room opens when the name is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["parallelize"]


class _FrontDoor(ModuleType):
    """A property, since importing the room `parallelize` sets the attribute of that
    name on the package: it must not hide the function behind its module."""

    @property
    def parallelize(self) -> Any:
        return import_module("runtime.parallelize").parallelize

    @parallelize.setter
    def parallelize(self, room: ModuleType) -> None: ...


sys.modules[__name__].__class__ = _FrontDoor
