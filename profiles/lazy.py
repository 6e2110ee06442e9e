"""Public names of a sub-package, whose modules are imported when one is first used.

The `__init__` imports its public names under `if TYPE_CHECKING`, for readers
and type checkers, and ends in `__getattr__ = lazily(__name__, __file__)`. What is
imported there is its `__all__`. So `plan --help` loads no solver, and nothing that
plans loads torch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazily(package: str, file: str) -> Callable[[str], Any]:
    """A `__getattr__` (PEP 562) for the `__init__` *file* of *package*.

    Of names that are not imported there it raises AttributeError, as Python does.
    """
    homes: dict[str, str] = {}

    def find(name: str) -> Any:
        if not homes and (name == "__all__" or not name.startswith("__")):
            homes.update(_homes(Path(file)))
        if name == "__all__":
            return list(homes)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return find


def _homes(file: Path) -> dict[str, str]:
    """The module of each name that the `__init__` *file* imports for type checkers."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name: node.module
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
