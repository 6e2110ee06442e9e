"""A table of runs: each row split into what is asked, what was measured, and names.

    asked      the columns that a question is made of; an estimate sees nothing else
    measured   what the run then did
    kept       id, source, family, notes and columns nobody knows: handed on unread

The split comes before anything else, so that no price can read a measurement.

A table in a CSV file, read whole and without trust: header and rows of text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from profiles.errors import InvalidFile
from profiles.files import shown
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


_COLUMNS: Final = {
    "asked": """
    model layers hidden heads kv_heads head_dim ffn_hidden gated_mlp tied_embeddings
    vocab seq_len experts experts_per_token expert_ffn_hidden shared_experts
    dense_layers attention kind task cluster device gpus gpus_per_node
    intra_node_gb_per_s inter_node_gbit_per_s precision tp pp dp cp ep virtual_stages
    zero zero_group sequence_parallel micro_batch global_batch recompute
    recompute_detail attention_kernel flash_attention fused_norm schedule offload
    framework
    """,
    "measured": """
    step_time_s step_time_origin tokens_per_s_per_gpu tflops_per_gpu
    flops_convention mfu peak_memory_gib peak_memory_kind oom
    """,
}
QUESTION: Final = tuple(_COLUMNS["asked"].split())
MEASURED: Final = tuple(_COLUMNS["measured"].split())
NAMES: Final = ("id", "source", "family", "notes")
_ASKED: Final = frozenset(QUESTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row, numbered from 0; only cells that are filled in are there.

    `fault` says what is wrong with the row as a whole, if anything.
    """

    row: int
    asked: Mapping[str, str]
    measured: Mapping[str, str]
    kept: Mapping[str, str]
    fault: str | None = None

    @property
    def key(self) -> str:
        """What tells this run from others in any table: its question and its step time,
        hashed. Where it stands, what it is called and other columns do not matter."""
        said = {**self.asked, "step_time_s": self.measured.get("step_time_s", "")}
        return sha256(repr(sorted(said.items())).encode()).hexdigest()[:16]

    def cell(self, column: str) -> str:
        """What stands in a column that no measurement is in; "" where empty."""
        return self.asked.get(column) or self.kept.get(column, "")


def read_runs(path: Path) -> tuple[Run, ...]:
    """Every row of the CSV file *path*.

    Raises InvalidFile for a file that is no table, or whose header names none of the
    columns that a run is described by.
    """
    table = read_table(path)
    if not _ASKED.intersection(table.header):
        raise InvalidFile(
            f"{shown(path)} starts with {','.join(table.header)[:60]!r}; its first "
            f"line must name columns such as {', '.join(QUESTION[:4])}, gpus, tp, pp"
        )
    return tuple(run_of(table, row) for row in range(len(table.rows)))


def run_of(table: Table, row: int) -> Run:
    """The row numbered *row* of *table*, split up."""
    cells = table.rows[row]
    filled = {
        name: cell
        for name, cell in zip(table.header, cells, strict=False)
        if cell and name
    }
    fault = None
    if len(cells) > len(table.header):
        fault = f"{len(cells)} cells under a header of {len(table.header)} columns"
    return Run(
        row=row,
        asked={name: cell for name, cell in filled.items() if name in _ASKED},
        measured={name: cell for name, cell in filled.items() if name in MEASURED},
        kept={
            name: cell
            for name, cell in filled.items()
            if name not in _ASKED and name not in MEASURED
        },
        fault=fault,
    )
