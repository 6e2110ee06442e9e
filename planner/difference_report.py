"""The difference between two layouts: a table, and a JSON document."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.estimate import Estimate
from costmodel.layout import Layout
from costmodel.layout_file import layout_document
from costmodel.report.table import headline, layout_words
from costmodel.uniform import Uniform
from planner.difference import (
    DIMENSIONS,
    OPERATORS,
    Change,
    Difference,
    own_operators,
)
from planner.explain import WORDS
from planner.words import away_words, retention_words
from profiles.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group

MOST_PARTS = 2
NOT_FITTING = " ✗"


def difference_document(found: Difference, files: tuple[Path, Path]) -> dict[str, Any]:
    """What `plan --diff A B --json` prints."""
    return {
        "a": {"file": str(files[0]), **_end(found.a)},
        "b": {"file": str(files[1]), **_end(found.b)},
        "changes": [_change(change) for change in found.changes],
        "step_time_s": found.b.step_time_s - found.a.step_time_s,
        "peak_memory_bytes": found.b.peak_memory_bytes - found.a.peak_memory_bytes,
    }


def _end(estimate: Estimate) -> dict[str, Any]:
    return {
        "layout": layout_document(estimate.layout),
        "estimate": estimate.document(),
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "dimensions": list(change.dimensions),
        "from": changed_words(change)[0],
        "to": changed_words(change)[1],
        "step_time_s": change.step_time_s,
        "peak_memory_bytes": change.peak_memory_bytes,
        "breakdown_s": change.parts_s,
        "fits": change.after.fits,
    }


def changed_words(change: Change) -> tuple[str, str]:
    """What the changed dimensions are before and after."""
    if change.choices is None:
        a, b = change.before.layout, change.after.layout
        if change.dimensions == (OPERATORS,):
            return _sharded(a), _sharded(b)
        ways = (layout_words, retention_words, away_words)
        told = next((way for way in ways if way(a) != way(b)), layout_words)
        return told(a), told(b)
    old, new = change.choices
    names = [
        field
        for dimension in change.dimensions
        for field in DIMENSIONS[dimension]
        if field != "gpus"
    ]
    names = [name for name in names if getattr(old, name) != getattr(new, name)]
    if old.dp != new.dp:
        names.append("dp")
    return _listed(old, names), _listed(new, names)


def _sharded(layout: Layout) -> str:
    return "their own" if own_operators(layout) else "the preset's"


def _listed(choice: Uniform, names: list[str]) -> str:
    return " · ".join(_said(name, getattr(choice, name)) for name in names)


def _said(name: str, value: object) -> str:
    if isinstance(value, bool):
        value = "on" if value else "off"
    called = "ZeRO++" if name == "zero_plus" else name.replace("_", "-")
    return f"{called} {value}"


def difference_view(found: Difference) -> Group:
    """Both layouts, and one line a change from the first to the second."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("change", overflow="fold")
    for name in ("step", "more", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("because", overflow="fold")
    table.add_row("A", format_seconds(found.a.step_time_s), "", _held(found.a), "")
    for change in found.changes:
        before, after = changed_words(change)
        table.add_row(
            f"{', '.join(change.dimensions)}: {before} → {after}",
            format_seconds(change.after.step_time_s),
            _more(change.step_time_s, found.a.step_time_s),
            _held(change.after),
            _because(change),
        )
    whole = found.b.step_time_s - found.a.step_time_s
    table.add_row(
        "B",
        format_seconds(found.b.step_time_s),
        _more(whole, found.a.step_time_s),
        _held(found.b),
        "" if found.changes else "the same layout",
        style="bold",
    )
    if not all(change.after.fits for change in found.changes):
        table.caption, table.caption_justify = f"{NOT_FITTING} does not fit", "left"
    ends = [
        Text(f"{name}  {layout_words(one.layout)}: {dict(headline(one))['step time']}")
        for name, one in (("A", found.a), ("B", found.b))
    ]
    return Group(*ends, Text(), table)


def _held(estimate: Estimate) -> str:
    mark = "" if estimate.fits else NOT_FITTING
    return f"{format_bytes(estimate.peak_memory_bytes)}{mark}"


def _more(seconds: float, of_s: float) -> str:
    return f"{seconds / of_s:+.1%}"


def _because(change: Change) -> str:
    """The parts of the step that change most, in per cent of the step before."""
    parts = sorted(change.parts_s.items(), key=lambda item: -abs(item[1]))
    step_s = change.before.step_time_s
    return ", ".join(
        f"{WORDS.get(name, name)} {more / step_s:+.1%}"
        for name, more in parts[:MOST_PARTS]
        if abs(more) >= 0.0005 * step_s
    )
