"""A table in a CSV file, read whole and without trust: header and rows of text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from profiles.documents import shown
from profiles.errors import InvalidFile
from profiles.units import MiB, format_bytes

LARGEST_BYTES: Final = 64 * MiB
MOST_ROWS: Final = 1_000_000
LONGEST_CELL: Final = 100_000  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Column names, and the cells of each row (as many as it has, blanks stripped)."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def read_table(path: Path) -> Table:
    """The table in *path*: UTF-8, comma separated, its first line the header.

    Blank lines are skipped. Raises InvalidFile for what is not such a table, or is
    larger than 64 MiB or a million rows.
    """
    lines = _lines(path, _text(path))
    header = next(lines, None)
    if header is None:
        raise InvalidFile(f"{shown(path)} is empty; its first line names the columns")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise InvalidFile(
            f"{shown(path)} has the column {twice[0]!r} more than once; keep one"
        )
    return Table(header=header, rows=tuple(lines))


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise InvalidFile(f"{shown(path)} is not a regular file; name a CSV file")
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidFile(f"{shown(path)} cannot be read: {why}") from error
    if len(content) > LARGEST_BYTES:
        raise InvalidFile(
            f"{shown(path)} is larger than {format_bytes(LARGEST_BYTES)}; split it up"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidFile(
            f"{shown(path)} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error


def _lines(path: Path, text: str) -> Iterator[tuple[str, ...]]:
    if "\0" in text:
        raise InvalidFile(f"{shown(path)} holds NUL bytes; save it as a UTF-8 CSV")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = 0
    try:
        for cells in reader:
            found = tuple(cell.strip() for cell in cells)
            if not any(found):
                continue
            rows += 1
            if rows > MOST_ROWS + 1:
                raise InvalidFile(
                    f"{shown(path)} has more than {MOST_ROWS:,} rows; split it up"
                )
            if any(len(cell) > LONGEST_CELL for cell in found):
                raise InvalidFile(
                    f"{shown(path)}, line {reader.line_num}: a cell has more than "
                    f"{LONGEST_CELL:,} characters; is a quote missing?"
                )
            yield found
    except csv.Error as error:
        raise InvalidFile(
            f"{shown(path)}, line {reader.line_num}: {error}; quotes must be closed, "
            "and doubled inside a cell"
        ) from error
