"""What a shell completes: names of the catalogues, beside files where both may stand.

Run at each press of the tab key, so nothing heavy is imported: only
the catalogues of names are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Completed = list[CompletionItem]
Complete = Callable[[click.Context, click.Parameter, str], Completed]


def _named(module: str, function: str, *, files: bool = False) -> Complete:
    """Completes the names that *function* of *module* gives, in any case; paths too
    where these are *files* as well."""

    def complete(_: click.Context, __: click.Parameter, begun: str) -> Completed:
        names: Iterable[str] = getattr(import_module(module), function)()
        found = [
            CompletionItem(name)
            for name in names
            if name.lower().startswith(begun.lower())
        ]
        return found or ([CompletionItem(begun, type="file")] if files else [])

    return complete


def complete_some(*names: str) -> Complete:
    """Completes *names*, which something else checks."""

    def complete(_: click.Context, __: click.Parameter, begun: str) -> Completed:
        return [CompletionItem(name) for name in names if name.startswith(begun)]

    return complete


complete_models = _named("profiles.models.catalog", "names", files=True)
complete_clusters = _named("profiles.hardware.catalog", "cluster_names", files=True)
complete_devices = _named("profiles.hardware.catalog", "device_names")


def complete_frameworks(_: click.Context, __: click.Parameter, begun: str) -> Completed:
    """Read from their catalogue: its module is of a later package, and loads numpy."""
    found = find_spec("costmodel")
    if found is None or found.origin is None:
        return []
    file = Path(found.origin).parent / "data" / "frameworks.json"
    entries = json.loads(file.read_text(encoding="utf-8"))["frameworks"]
    names = (str(one["name"]) for one in entries)
    return [CompletionItem(name) for name in names if name.startswith(begun.lower())]
