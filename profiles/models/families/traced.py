"""Graphs of users' own modules: known in this process alone, once they were traced.

A file can name a module, and nothing is imported because a file says so.
"""

from __future__ import annotations

from profiles.errors import Unsupported
from profiles.models.graph import ModelGraph
from profiles.models.spec import ModuleSpec

_GRAPHS: dict[str, ModelGraph] = {}
_SPECS: dict[str, ModuleSpec] = {}


def remember(spec: ModuleSpec, graph: ModelGraph) -> ModuleSpec:
    """Let files name *spec* by its module."""
    _SPECS[spec.module], _GRAPHS[spec.digest] = spec, graph
    return spec


def remembered(module: str) -> ModuleSpec:
    """What was traced under that name; raises Unsupported where nothing was."""
    if module not in _SPECS:
        raise Unsupported(
            f"the layout is of the module {module}, and no file decides what is "
            f"imported: give --model {module} too"
        )
    return _SPECS[module]


def traced_graph(spec: ModuleSpec) -> ModelGraph:
    """The graph of a module that was traced in this process."""
    return _GRAPHS[spec.digest]
