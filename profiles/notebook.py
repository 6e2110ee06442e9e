"""Tables that a notebook shows: what the results' `_repr_html_` return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(
    title: str, rows: Iterable[Sequence[str]], *, heads: Sequence[str] = ()
) -> str:
    """An HTML table under *title*; without *heads* the first cell of a row is its head.

    Every text is escaped: a name from a stranger's file is shown, never run.

    >>> html_table("a < b", [("fits", "yes")])
    '<table><caption>a &lt; b</caption><tr><th>fits</th><td>yes</td></tr></table>'
    """
    named = 0 if heads else 1  # cells of a row that are its head
    lines = [_line(row[:named], row[named:]) for row in rows]
    top = [_line(heads, ())] if heads else []
    caption = f"<caption>{escape(title)}</caption>"
    return f"<table>{caption}{''.join(top + lines)}</table>"


def _line(heads: Iterable[str], cells: Iterable[str]) -> str:
    found = [f"<th>{escape(text)}</th>" for text in heads]
    found += [f"<td>{escape(text)}</td>" for text in cells]
    return f"<tr>{''.join(found)}</tr>"
