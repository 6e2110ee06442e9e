"""A searchable list of a catalogue: what `meshwright models` and its like print."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from profiles.commandline.terminal import console, emit_json
from profiles.errors import UnknownName

Entry = Mapping[str, Any]  # a document; `name` and `aliases` are among its members


def print_list(
    what: str,
    entries: Iterable[Entry],
    columns: Mapping[str, Callable[[Entry], str]],
    words: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Print the *entries* in which every one of *words* stands, in any case.

    *columns* are the headings of the table and what stands below them. Raises
    UnknownName, with the nearest names, where there is none.
    """
    every = list(entries)
    found = [one for one in every if all(_has(one, word) for word in words)]
    if not found:
        raise UnknownName(what, " ".join(words), [one["name"] for one in every])
    if as_json:
        emit_json({f"{what}s": [dict(one) for one in found]})
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in columns:
        right = heading not in ("name", "family", "links", "base", "hidden")
        table.add_column(
            heading,
            justify="right" if right else "left",
            no_wrap=heading == "name",
        )
    for one in found:
        table.add_row(*(show(one) for show in columns.values()))
    console().print(table)


def _has(entry: Entry, word: str) -> bool:
    """Whether *word* stands in any text of *entry*."""
    texts = [value for value in entry.values() if isinstance(value, str)]
    texts += entry.get("aliases", ())
    return any(word.lower() in text.lower() for text in texts)
