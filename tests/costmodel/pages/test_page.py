"""The page of one layout: whole, alone, escaped, and of the document's numbers."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel import simulate as price
from costmodel.cli import simulate
from costmodel.pages import estimate_page, estimate_series, whole_page
from costmodel.pages.fragments import sentence
from costmodel.simulation import Estimate
from profiles.arrays import Array
from profiles.hardware import cluster

needs_bokeh = pytest.mark.usefixtures("bokeh")
MOST_BYTES = 5_000_000
ALONE = {"meta", "br", "input", "link"}


@pytest.fixture(scope="module")
def bokeh() -> None:
    pytest.importorskip("bokeh", reason="Bokeh draws the charts: meshwright[report]")


@pytest.fixture(scope="module")
def found() -> Estimate:
    return price("gpt-13b", gpus=64, tp=4, pp=4, micro_batch=4)


class Reader(HTMLParser):
    """Checks that elements are nested, and keeps what a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ALONE:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "action"):
                self.loaded.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def series_of(text: str) -> dict[str, Any]:
    told = re.search(r'id="charts">(.*?)</script>', text, re.S)
    assert told is not None
    found: dict[str, Any] = json.loads(told[1])["series"]
    return found


def column(one: dict[str, str]) -> Array:
    return np.frombuffer(b64decode(one["base64"]), np.dtype(one["type"]))


@needs_bokeh
def test_a_page_is_well_formed_and_loads_nothing(found: Estimate) -> None:
    text = estimate_page(found, cluster("dgx-a100-80gb"))
    reader = read(text)
    assert reader.loaded == []
    assert len(reader.ids) == len(set(reader.ids))
    assert "default-src 'none'" in text
    assert not re.search(r"@import|url\(\s*['\"]?https?:", text.split("<script")[0])
    for chart in ("timeline", "memory", "breakdown"):
        assert f"{chart}-chart" in reader.ids
    assert text.count("<figure aria-label=") == 3
    assert len(text) < MOST_BYTES


@needs_bokeh
def test_a_deep_pipeline_stays_a_small_file() -> None:
    found = price("gpt-1t", gpus=512, tp=8, pp=64, micro_batch=1, global_batch=512)
    assert found.timeline.program.rows.size == 2 * 64 * 512
    assert len(estimate_page(found, cluster("dgx-a100-80gb"))) < MOST_BYTES


@needs_bokeh
def test_names_are_never_markup(found: Estimate) -> None:
    name = "<script>alert(1)</script><!--"
    bad = replace(found, job=replace(found.job, model=name), warnings=(name,))
    text = estimate_page(bad, cluster("dgx-a100-80gb"))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    read(text)
    written = whole_page(name, name, [], {"pareto": {"name": name}})
    assert "<script>alert" not in written
    assert series_of(written)["pareto"]["name"] == name


@needs_bokeh
def test_numbers_are_those_of_the_document(found: Estimate) -> None:
    text = estimate_page(found, cluster("dgx-a100-80gb"))
    series, document = series_of(text), found.document()
    seconds = dict(
        zip(series["breakdown"]["names"], series["breakdown"]["seconds"], strict=True)
    )
    assert seconds == document["breakdown_s"]
    peaks = [line["peak_gib"] for line in series["memory"]["lines"]]
    assert peaks == [one["total"] / 2**30 for one in document["memory"]]
    assert series["timeline"]["makespan_s"] == document["step_time_s"]
    for rank in document["memory"]:
        assert f"<td>{rank['total'] / 2**30:.2f}</td>" in text
    assert f"{document['tokens_per_s_per_gpu']:,.0f} tokens/s per GPU" in text


def test_every_action_is_drawn_once_and_in_order(found: Estimate) -> None:
    told = estimate_series(found)["timeline"]
    start, seconds = column(told["start_s"]), column(told["seconds"])
    kinds = column(told["kind"])
    assert (kinds < 5).sum() == found.timeline.program.rows.size
    for first, last in zip(told["offsets"], told["offsets"][1:], strict=False):
        ends = start[first:last] + seconds[first:last]
        assert np.all(start[first + 1 : last] >= ends[:-1] * (1 - 1e-6))
    assert np.isclose((start + seconds).max(), found.step_time_s)


def test_transfers_are_drawn_where_there_are_not_too_many(found: Estimate) -> None:
    sent = estimate_series(found)["timeline"]["transfers"]
    assert len(sent["labels"]) == 2 * 3 * found.layout.micro_batches
    assert sent["labels"][0].startswith("rank 0 to 1: ")
    assert np.all(column(sent["seconds"]) > 0)
    assert estimate_series(found, 1000)["timeline"]["transfers"] is None


def test_of_too_many_actions_neighbours_are_joined_and_it_is_said(
    found: Estimate,
) -> None:
    told = estimate_series(found, 200)["timeline"]
    whole = estimate_series(found)["timeline"]
    assert told["joined"] == 4
    assert len(column(told["start_s"])) < 250
    assert column(told["start_s"])[0] == column(whole["start_s"])[0]


def test_memory_over_time_peaks_at_the_estimate(found: Estimate) -> None:
    for line in estimate_series(found)["memory"]["lines"]:
        assert np.isclose(column(line["gib"]).max(), line["peak_gib"], rtol=1e-6)
        assert np.all(np.diff(column(line["time_s"])) >= 0)


def test_the_sentence_says_whether_it_fits() -> None:
    small = price("gpt-13b", gpus=8, tp=8)
    large = price("gpt-175b", gpus=8, tp=8)
    assert "which fits in 79.2 GiB" in sentence(small)
    assert "which does not fit in 79.2 GiB" in sentence(large)


LAYOUT = ("--model", "gpt-tiny", "--gpus", "2", "--pp", "2")


@needs_bokeh
def test_simulate_writes_the_page_of_one_layout(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert simulate.run([*LAYOUT, "--report", str(out)]) == 0
    assert "gpt-tiny on 2" in out.read_text(encoding="utf-8")


def test_without_bokeh_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "bokeh", None)
    monkeypatch.setitem(sys.modules, "bokeh.plotting", None)
    files = [tmp_path / name for name in ("page.html", "layout.json", "trace.json")]
    report, out, trace = map(str, files)
    argv = [*LAYOUT, "--report", report, "--out", out, "--trace", trace]
    assert simulate.run(argv) == 2
    told, said = capsys.readouterr()
    assert told == ""
    assert "pip install 'meshwright[report]'" in said
    assert not any(file.exists() for file in files)


def test_a_sweep_has_no_page_of_one_layout(tmp_path: Path) -> None:
    argv = [*LAYOUT, "--sweep", "tp=1", "--report", str(tmp_path / "page.html")]
    assert simulate.run(argv) == 2
