"""A sweep as a table, as JSON and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO
from types import MappingProxyType
from typing import Any, Final

from costmodel.report import layout_words, pairs_table
from costmodel.simulation import Estimate
from costmodel.sweep.axes import point_words, value_words
from costmodel.sweep.pricing import Found, Point
from profiles.commandline import console, emit_json, warn
from profiles.units import HOUR_S, format_bytes, format_seconds

Row = tuple[Point, Found | str]
_KW: Final = 1e3
_MTOKEN: Final = 1e6


def dollars_per_mtoken(found: Estimate) -> float | None:
    """Dollars for a million tokens; None where the device has no price."""
    return _a_mtoken(found, found.device_cost)


def kwh_per_mtoken(found: Estimate) -> float | None:
    """Energy of the devices at rated power; None where nobody says."""
    watts = found.device_power_w
    return _a_mtoken(found, None if watts is None else watts / _KW)


def _a_mtoken(found: Estimate, an_hour: float | None) -> float | None:
    if an_hour is None:
        return None
    return an_hour / HOUR_S / found.tokens_per_s_per_gpu * _MTOKEN


def _cents(dollars: float | None) -> str:
    return "" if dollars is None else f"{dollars:,.3f}"


COLUMNS: Final[Mapping[str, Callable[[Estimate], str]]] = {
    "step time": lambda found: format_seconds(found.step_time_s),
    "tokens/s/GPU": lambda found: f"{found.tokens_per_s_per_gpu:,.0f}",
    "MFU": lambda found: f"{found.mfu:.1%}",
    "peak memory": lambda found: format_bytes(found.peak_memory_bytes),
    "fits": lambda found: "yes" if found.fits else "no",
    "$/Mtoken": lambda found: _cents(dollars_per_mtoken(found)),
}


def unit_of(found: Iterable[object]) -> str:
    """What the estimates count: tokens (also where they differ), images, samples."""
    units = {one.job.unit for one in found if isinstance(one, Estimate)}
    return units.pop() if len(units) == 1 else "tokens"


def counted_in(unit: str, words: str) -> str:
    """*words* about tokens, about something else.

    >>> counted_in("images", "tokens/s"), counted_in("images", "$/Mtoken")
    ('images/s', '$/Mimage')
    """
    return words.replace("token", unit.removesuffix("s"))


def columns_of(rows: Sequence[Row[Estimate]]) -> dict[str, Callable[[Estimate], str]]:
    """`COLUMNS`, called by what the models count."""
    unit = unit_of(found for _, found in rows)
    return {counted_in(unit, name): write for name, write in COLUMNS.items()}


CELLS: Final[Mapping[str, Callable[[Estimate], Any]]] = {
    "step_time_s": lambda found: found.step_time_s,
    "tokens_per_s_per_gpu": lambda found: found.tokens_per_s_per_gpu,
    "mfu": lambda found: found.mfu,
    "hfu": lambda found: found.hfu,
    "peak_memory_bytes": lambda found: found.peak_memory_bytes,
    "fits": lambda found: found.fits,
    "dollars_per_mtoken": dollars_per_mtoken,
    "kwh_per_mtoken": kwh_per_mtoken,
    "layout": lambda found: layout_words(found.layout),
}


def show_sweep(
    rows: Sequence[Row[Found]],
    columns: Mapping[str, Callable[[Found], str]],
    *,
    as_json: bool,
    words: Callable[[Found], str] | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Print one line a point of a sweep: *columns* of its estimate, or why it has none,
    and below what *words* say of each; or all of them as one JSON document, with *more*
    members."""
    if as_json:
        points = [
            {"point": point, "estimate": None, "error": found}
            if isinstance(found, str)
            else {"point": point, "estimate": found.document(), "error": None}
            for point, found in rows
        ]
        emit_json({"sweep": points, **more})
        return
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold")
    shown = _with_values(rows, columns)
    for name in (*rows[0][0], *shown):
        head = heading(name.replace("_", "-"))
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for point, found in rows:
        cells = [value_words(value) for value in point.values()]
        if isinstance(found, str):
            table.add_row(*cells, *[""] * len(shown), found)
            continue
        for line in found.warnings:
            warn(f"{point_words(point)}: {line}")
        table.add_row(*cells, *(write(found) for write in shown.values()))
    console().print(table)
    if words is not None:
        said = [(p, one) for p, one in rows if not isinstance(one, str)]
        pairs = ((point_words(point), words(one)) for point, one in said)
        console().print()
        console().print(pairs_table(pairs))


def heading(name: str) -> str:
    """A column's name on two lines, where it has two words.

    >>> heading("inter-node-bandwidth"), heading("step time"), heading("MFU")
    ('inter-node-\\nbandwidth', 'step\\ntime', 'MFU')
    """
    for sign, kept in (("-", "-"), (" ", ""), ("/", "/")):
        first, found, last = name.rpartition(sign)
        if found:
            return f"{first}{kept}\n{last}"
    return name


def _with_values(
    rows: Sequence[Row[Found]], columns: Mapping[str, Callable[[Found], str]]
) -> dict[str, Callable[[Found], str]]:
    """The columns that say anything."""
    found = [one for _, one in rows if not isinstance(one, str)]
    return {
        name: write
        for name, write in columns.items()
        if not found or any(write(one) for one in found)
    }


def csv_text(
    rows: Sequence[Row[Found]], cells: Mapping[str, Callable[[Found], Any]]
) -> str:
    """One line a point: its values, *cells* of its estimate, and why it has none."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*rows[0][0], *cells, "error"])
    for point, found in rows:
        values = [value_words(value) for value in point.values()]
        if isinstance(found, str):
            writer.writerow([*values, *[""] * len(cells), found])
            continue
        writer.writerow([*values, *(_cell(read(found)) for read in cells.values()), ""])
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)
