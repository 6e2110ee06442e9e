"""What was measured comes between a page's markers, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pages import put

PAGE = "before\n<!-- loop -->\nold\n<!-- end of the loop -->\nafter \\1\n"


def test_the_text_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for _ in range(2):
        put(page, "loop", "new \\1\n")
        assert page.read_text() == PAGE.replace("old", "new \\1")


def test_a_page_without_the_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    with pytest.raises(ValueError, match="0 places marked 'networks'"):
        put(page, "networks", "new")
    assert page.read_text() == PAGE
