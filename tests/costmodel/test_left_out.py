"""Runs left out of the fit: the file, and whose runs they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.left_out import LeftOut, errors_of, left_out, read_left_out
from profiles.errors import InvalidFile

HEADER = "row,fit,without_family,without_source\n"


def test_file_is_read_by_row(tmp_path: Path) -> None:
    path = tmp_path / "left-out.csv"
    path.write_text(HEADER + "16,1.02,1.05,0.9\n")
    expected = LeftOut(row=16, fit=1.02, without_family=1.05, without_source=0.9)
    assert read_left_out(path) == {16: expected}
    assert read_left_out(tmp_path / "none.csv") == {}


@pytest.mark.parametrize(
    "text", ["row,fit\n1,2\n", HEADER + "1,x,1,1\n", HEADER + "1\n"]
)
def test_another_table_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "left-out.csv"
    path.write_text(text)
    with pytest.raises(InvalidFile, match="left-out"):
        read_left_out(path)


def test_a_run_is_known_by_its_error() -> None:
    run = LeftOut(row=1, fit=1.02, without_family=1.05, without_source=0.9)
    assert run.is_of(1.03)
    assert not run.is_of(1.2)


def test_sources_weigh_the_same() -> None:
    found = errors_of([("a", 1.1), ("a", 0.9), ("a", 1.1), ("b", 1.5)])
    assert found.rows == 4
    assert found.mean == pytest.approx(0.2)
    assert found.median == pytest.approx(0.1)
    assert found.by_source == pytest.approx(0.3)


def test_what_is_installed_can_be_read() -> None:
    assert all(item.fit > 0 for item in left_out().values())
