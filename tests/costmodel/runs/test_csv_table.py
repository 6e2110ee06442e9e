"""Tables from strangers: what cannot be read is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.runs import table as csv_table
from costmodel.runs.table import read_table
from profiles.errors import InvalidFile


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    return path


def test_cells_are_stripped_and_blank_lines_skipped(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, b'a, b\r\n\r\n1 ," 2,3"\r\n,,\r\n4,5\r\n'))
    assert table.header == ("a", "b")
    assert table.rows == (("1", "2,3"), ("4", "5"))


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path: Path) -> None:
    assert read_table(written(tmp_path, b"\xef\xbb\xbfid\n7\n")).header == ("id",)


def test_a_line_separator_inside_a_cell_does_not_cut_it(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, 'a,b\nx\u2028y,"1\n2"\n'.encode()))
    assert table.rows == (("x\u2028y", "1\n2"),)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a,b,a\n1,2,3\n", "more than once"),
        (b"model\ncaf\xe9\n", "not UTF-8 text .byte 9"),
        (b"model\ngpt\0\n", "NUL"),
        (b'model\n"gpt\n', "quotes must be closed"),
    ],
)
def test_what_is_no_table_is_refused(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    with pytest.raises(InvalidFile, match=reason):
        read_table(written(tmp_path, content))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="No such file"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(InvalidFile, match="not a regular file"):
        read_table(tmp_path)


def test_sizes_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, b"model\n" + b"gpt\n" * 10)
    monkeypatch.setattr(csv_table, "MOST_ROWS", 9)
    with pytest.raises(InvalidFile, match="more than 9 rows"):
        read_table(path)
    monkeypatch.setattr(csv_table, "LONGEST_CELL", 4)
    with pytest.raises(InvalidFile, match="a quote missing"):
        read_table(path)
    monkeypatch.setattr(csv_table, "LARGEST_BYTES", 20)
    with pytest.raises(InvalidFile, match="larger than 20 B"):
        read_table(path)
