"""The page of a table of runs: whole in itself, and of every run that counts."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from costmodel.cli import simulate
from costmodel.machine.coefficients import Coefficient
from costmodel.report.html_page import runs_page
from costmodel.report.svg import Dot, scatter, strips
from costmodel.runs.table import read_runs
from costmodel.runs.validate import compare, whole_summary

ROW = {
    "model": "gpt-13b",
    "source": "A <b> & co",
    "family": "f",
    "gpus": "16",
    "cluster": "dgx-a100-80gb",
    "tp": "8",
    "pp": "1",
    "global_batch": "32",
    "step_time_s": "10",
    "framework": "Megatron-LM",
    "recompute": "full",
    "recompute_detail": "",
}
ROWS = [
    *({**ROW, "micro_batch": str(size)} for size in (1, 2, 4, 8)),
    {**ROW, "gpus": ""},
]


FITTED = Coefficient(
    name="product/ampere",
    meaning="seconds over those alone",
    prior=1.0,
    spread=0.1,
    source="",
    value=1.07,
    error=0.02,
    rows=493,
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*ROW, "micro_batch"])
        writer.writeheader()
        writer.writerows(ROWS)
    return path


def test_page_stands_alone_and_shows_every_run(table: Path) -> None:
    compared = list(compare(read_runs(table)))
    page = runs_page("Runs <1>", compared, whole_summary(compared), [FITTED])
    assert not re.search(r"https?:|<script|<link|<img|@import|src=|url\(", page)
    assert "Runs &lt;1&gt;" in page
    assert "A &lt;b&gt; &amp; co" in page
    assert "<b>" not in page
    assert page.count("<title>row 0, gpt-13b on 16") > 1
    assert "product/ampere" in page
    assert "493" in page
    assert "gpus missing" in page or "gpus is missing" in page


def test_command_writes_the_page(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    run = CliRunner().invoke(simulate, ["--runs", str(table), "--report", str(out)])
    assert run.exit_code == 0, run.output
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_dots_lie_where_they_should() -> None:
    """Equal times lie on the diagonal; errors beyond the drawing lie on its edge."""
    even = Dot(estimated_s=2.0, measured_s=2.0, words="even")
    wide = Dot(estimated_s=20.0, measured_s=2.0, words="wide")
    found = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', scatter([even, wide]))
    (x1, y1), (x2, y2) = (map(float, pair) for pair in found)
    assert x1 - 56 == pytest.approx(12 + 560 - y1, abs=0.2)
    assert x1 == x2
    assert y2 < y1
    xs = re.findall(r'cx="([\d.]+)"', strips({"a": [even, wide]}))
    assert [float(x) for x in xs] == [250 + 310, 250 + 620]


def test_no_runs_make_a_page_too() -> None:
    assert "No run" in scatter([])
