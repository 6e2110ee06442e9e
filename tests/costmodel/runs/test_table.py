"""A table of runs is read and priced row by row; a bad row stops no other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.runs.pricing import Priced, price_runs
from costmodel.runs.table import MEASURED, QUESTION, Run, Table, read_runs, run_of
from profiles.errors import InvalidFile
from tests.support.full_row import FULL


def table(tmp_path: Path, rows: Iterable[Mapping[str, str]]) -> Path:
    rows = list(rows)
    header = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(header)]
    lines += [",".join(f'"{row.get(name, "")}"' for name in header) for row in rows]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def priced(tmp_path: Path, *rows: Mapping[str, str]) -> list[Priced]:
    return list(price_runs(read_runs(table(tmp_path, rows))))


def test_a_bad_row_stops_no_other(tmp_path: Path) -> None:
    rows = [FULL, {**FULL, "hidden": "wide"}, {"model": "nothing else"}, FULL]
    found = priced(tmp_path, *rows)
    assert [item.run.row for item in found] == [0, 1, 2, 3]
    assert [item.price is None for item in found] == [False, True, True, False]
    assert [item.error is None for item in found] == [True, False, False, True]


def test_a_row_longer_than_the_header_is_refused_alone(tmp_path: Path) -> None:
    path = table(tmp_path, [FULL])
    path.write_text(path.read_text() + ",".join(["1"] * 99) + "\n")
    first, second = price_runs(read_runs(path))
    assert first.error is None
    assert second.error is not None
    assert "99 cells" in second.error


def test_unknown_columns_are_kept_and_ignored(tmp_path: Path) -> None:
    plain, odd = priced(tmp_path, FULL, {**FULL, "weather": "rain", "id": "7"})
    assert odd.run.kept == {"weather": "rain", "id": "7"}
    assert plain.price == odd.price
    assert plain.price
    assert odd.price
    assert plain.price.document == odd.price.document


def test_a_header_without_any_known_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("gpt-13b,64,4,2\n")
    with pytest.raises(InvalidFile, match="first line must name columns"):
        read_runs(path)


def test_a_header_alone_is_a_table_of_no_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("model,gpus\n")
    assert read_runs(path) == ()


@given(
    st.dictionaries(
        st.sampled_from(["id", "source", "family", "notes", *MEASURED]),
        st.text(st.characters(codec="utf-8", exclude_characters='"\0'), max_size=8),
    )
)
def test_no_estimate_reads_a_name_or_a_measurement(cells: dict[str, str]) -> None:
    """Whatever stands in those columns, the same question is asked."""
    header = [*FULL, *cells]
    run = _split(dict(zip(header, [*FULL.values(), *cells.values()], strict=True)))
    assert run.asked == {name: text for name, text in FULL.items() if text}
    assert not set(run.asked) & {"id", "source", "family", "notes", *MEASURED}


def _split(row: Mapping[str, str]) -> Run:
    return run_of(Table(header=tuple(row), rows=(tuple(row.values()),)), 0)


def test_the_columns_of_the_contract_are_all_known() -> None:
    assert len(QUESTION) + len(MEASURED) == len({*QUESTION, *MEASURED})
    assert {*FULL} <= {*QUESTION}
