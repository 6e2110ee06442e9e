"""The page of a plan: the recommendation, the front, what speaks against others."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.cli import plan

MINI = ("--model", "gpt-mini", "--gpus", "8")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("bokeh", reason="Bokeh draws the charts: meshwright[report]")
    file = tmp_path_factory.mktemp("page") / "plan.html"
    assert plan.run([*MINI, "--explain", "--report", str(file)]) == 0
    return file.read_text(encoding="utf-8")


def points(text: str) -> list[dict[str, Any]]:
    told = re.search(r'id="charts">(.*?)</script>', text, re.S)
    assert told is not None
    found: list[dict[str, Any]] = json.loads(told[1])["series"]["pareto"]["points"]
    return found


def test_it_has_every_part(written: str) -> None:
    parts = ("figures", "why", "layout", "timeline", "memory", "breakdown", "front")
    for name in (*parts, "alternatives", "what-if", "sources", "assumed", "warnings"):
        assert f'<section id="{name}">' in written
    assert "Recommended" in written
    assert "10 % more compute" in written


def test_nothing_shown_beats_the_front_in_both(written: str) -> None:
    found = points(written)
    on_front = [one for one in found if one["on_front"]]
    assert [one["role"] for one in found].count("recommended") == 1
    for one in on_front:
        assert not any(
            other["gib"] < one["gib"] and other["tokens"] > one["tokens"]
            for other in found
        )


def test_without_bokeh_nothing_is_searched_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "bokeh", None)
    monkeypatch.setitem(sys.modules, "bokeh.plotting", None)
    page, out = tmp_path / "plan.html", tmp_path / "layout.json"
    assert plan.run([*MINI, "--report", str(page), "--out", str(out)]) == 2
    assert "meshwright[report]" in capsys.readouterr().err
    assert not page.exists()
    assert not out.exists()


def test_one_page_is_of_one_plan(tmp_path: Path) -> None:
    argv = ("--model", "gpt-mini", "--gpus", "2,4")
    assert plan.run([*argv, "--report", str(tmp_path / "plan.html")]) == 2
