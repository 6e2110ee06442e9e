"""Public names of a sub-package, whose modules are imported when one is first used.

The `__init__` imports its public names under `if TYPE_CHECKING`, for readers and type
checkers, and ends in `__all__, __getattr__ = public(__name__, __file__)`. So `plan
--help` loads no solver, and nothing that plans loads torch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def public(package: str, file: str) -> tuple[list[str], Callable[[str], Any]]:
    """`__all__` and `__getattr__` (PEP 562) of the `__init__` *file* of *package*."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    homes = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return list(homes), find
