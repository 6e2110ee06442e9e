"""The page of a layout as Chromium shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from costmodel import simulate
from costmodel.pages import estimate_page, sweep_page
from profiles.hardware import cluster
from tests.support.browser import READY, browser, watched

pytestmark = pytest.mark.slow
SMOOTH_MS = 1000  # of a zoom on a busy machine; some 100 are usual


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    pytest.importorskip("bokeh", reason="Bokeh draws the charts: meshwright[report]")
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 stages and 512 micro-batches: 65,536 passes."""
    pytest.importorskip("bokeh", reason="Bokeh draws the charts: meshwright[report]")
    found = simulate("gpt-1t", gpus=512, tp=8, pp=64, micro_batch=1, global_batch=512)
    file = tmp_path_factory.mktemp("page") / "deep.html"
    file.write_text(estimate_page(found, cluster("dgx-a100-80gb")), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_shows_without_complaint(
    chromium: Any, deep: Path, width: int, scheme: str
) -> None:
    size = {"width": width, "height": 900}
    page, complaints, loaded = watched(chromium, viewport=size, color_scheme=scheme)
    page.goto(deep.as_uri())
    page.wait_for_selector(READY)
    assert complaints == []
    assert [url for url in loaded if not url.startswith(("file:", "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_the_timeline_zooms_until_each_action_is_drawn(
    chromium: Any, deep: Path
) -> None:
    page, complaints, _ = watched(chromium, viewport={"width": 1200, "height": 900})
    page.goto(deep.as_uri())
    page.wait_for_selector(READY)
    page.wait_for_function(
        "document.getElementById('timeline-note').textContent.includes('65,')"
    )
    assert "drawn as blocks" in page.inner_text("#timeline-note")
    for _ in range(6):
        page.click("button[data-zoom='timeline:in']")
    page.wait_for_function(
        "document.getElementById('timeline-note').textContent.includes('each one')"
    )
    took_ms = page.evaluate(
        """async () => {
          const began = performance.now();
          Meshwright.zoom("timeline", "all");
          const frame = () => new Promise((next) => requestAnimationFrame(next));
          await frame(); await frame();
          return performance.now() - began;
        }"""
    )
    assert took_ms < SMOOTH_MS
    assert complaints == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_a_sweep_shows_without_complaint(
    chromium: Any, tmp_path: Path, scheme: str
) -> None:
    rows = [
        (
            {"gpus": gpus, "zero": zero},
            simulate("gpt-13b", gpus=gpus, tp=4, zero=zero, global_batch=256),
        )
        for gpus in (8, 64, 512)
        for zero in (1, 3)
    ]
    file = tmp_path / "sweep.html"
    file.write_text(sweep_page(rows), encoding="utf-8")
    size = {"width": 390, "height": 900}
    page, complaints, loaded = watched(chromium, viewport=size, color_scheme=scheme)
    page.goto(file.as_uri())
    page.wait_for_selector(READY)
    assert complaints == []
    assert [url for url in loaded if not url.startswith(("file:", "data:"))] == []
    assert page.locator("#throughput-legend li").all_inner_texts() == [
        "zero=1",
        "zero=3",
    ]
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    page.close()
