"""Solved choices, kept in memory and on disk: a problem is solved once.

The key is a digest of all its numbers, so that nothing goes stale: another machine,
model or price is another key. A file in the folder is a hint from a stranger: it is
believed only as far as the problem itself bears it out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from planner.sharding.choice_graph import ChoiceGraph, Chosen, Status
from profiles.errors import MeshwrightError
from profiles.files import decode, read_json, write_text

_KIND, _VERSION = "meshwright-choice", 1
_MOST_BYTES = 1_000_000
_solved: dict[str, Chosen] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChoice:
    """What a file of the cache holds."""

    kind: str
    version: int
    choice: dict[str, int]
    value: float


def cache_folder() -> Path:
    """Below XDG_CACHE_HOME, or ~/.cache where that is unset or relative."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    return base / "meshwright" / "intra-op"


def cached(
    graph: ChoiceGraph,
    solve: Callable[[ChoiceGraph], Chosen],
    folder: Path | None,
) -> Chosen:
    """The proven choice of *graph*: known, or stored in *folder*, or solved now.

    Only proven ones are kept. None for *folder* leaves the disk alone; one that cannot
    be read or written is done without.
    """
    key = graph.digest
    if key in _solved:
        return _solved[key]
    file = None if folder is None else folder / f"{key}.json"
    found = _read(file, graph) if file is not None else None
    if found is None:
        found = solve(graph)
        if found.status is Status.OPTIMAL and file is not None:
            _write(file, found)
    if found.status in (Status.OPTIMAL, Status.INFEASIBLE):
        _solved[key] = found
    return found


def forget() -> None:
    """Empty the cache in memory."""
    _solved.clear()


def _read(file: Path, graph: ChoiceGraph) -> Chosen | None:
    """What *file* holds, if it is a choice of *graph* at the price that it says."""
    if not file.exists():
        return None
    try:
        data = read_json(file, what="cached choice", most_bytes=_MOST_BYTES)
        stored = decode(data, StoredChoice, what="cached choice")
    except MeshwrightError:
        return None
    if (stored.kind, stored.version) != (_KIND, _VERSION):
        return None
    if not _is_choice(stored.choice, graph) or graph.breaks(stored.choice):
        return None
    value = graph.value(stored.choice)
    if not isfinite(value) or abs(value - stored.value) > 1e-9 * abs(value):
        return None
    choice = {name: stored.choice[name] for name in graph.nodes}
    return Chosen(status=Status.OPTIMAL, choice=choice, value=value, lower=value)


def _is_choice(choice: dict[str, int], graph: ChoiceGraph) -> bool:
    return choice.keys() == graph.nodes.keys() and all(
        0 <= choice[name] < len(costs) for name, costs in graph.nodes.items()
    )


def _write(file: Path, found: Chosen) -> None:
    import msgspec

    stored = StoredChoice(
        kind=_KIND, version=_VERSION, choice=dict(found.choice), value=found.value
    )
    with suppress(OSError, MeshwrightError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, msgspec.json.encode(stored).decode() + "\n")
