"""The explorer as somebody uses it in Chromium."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from costmodel.cli import simulate
from planner.explorer import Catalogue, Server
from tests.support.browser import browser, watched

pytestmark = pytest.mark.slow
START = {"model": "gpt-mini", "cluster": "dgx-a100-80gb", "gpus": 8, "micro_batch": 1}
ANSWERED = "html[data-answers='{}']"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pytest.importorskip("bokeh", reason="Bokeh draws the charts: meshwright[report]")
    server = Server(START, Catalogue(), 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server.address
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def chromium(address: str) -> Iterator[Any]:
    with browser() as started:
        yield started


def test_a_slider_changes_the_answer_and_the_address(
    chromium: Any, address: str
) -> None:
    page, complaints, loaded = watched(chromium)
    page.goto(address)
    page.wait_for_selector(ANSWERED.format(1))
    before, url = page.inner_text("#lead"), page.url
    page.focus("input[name=tp]")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(ANSWERED.format(2))
    assert page.inner_text("#lead") != before
    assert "tp 2" in page.inner_text("#lead")
    assert page.url != url
    assert "tp=2" in page.url
    again, worries, _ = watched(chromium)
    again.goto(page.url)
    again.wait_for_selector(ANSWERED.format(1))
    assert again.inner_text("#lead") == page.inner_text("#lead")
    assert complaints == worries == []
    assert all(url.startswith((address, "data:")) for url in loaded)
    page.close()
    again.close()


def test_what_cannot_be_is_said_and_mended(chromium: Any, address: str) -> None:
    page, _, _ = watched(chromium)
    page.goto(f"{address}?model=gpt-mini&gpus=8&tp=16")
    page.wait_for_selector(ANSWERED.format(1))
    assert "does not divide" in page.inner_text("#error")
    page.focus("input[name=tp]")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(ANSWERED.format(2))
    assert page.inner_text("#error") == ""
    page.close()


def test_a_plan_sets_the_controls_and_is_saved(
    chromium: Any, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, complaints, _ = watched(chromium)
    page.goto(f"{address}?model=gpt-mini&gpus=8&tp=8")
    page.wait_for_selector(ANSWERED.format(1))
    page.click("#plan")
    page.wait_for_selector("html[data-planned]")
    page.wait_for_selector(ANSWERED.format(2))
    page.wait_for_selector("#plan:not([disabled])")
    assert "tp=8" not in page.url
    assert page.is_visible("#alternatives")
    with page.expect_download() as saved:
        page.click("#save")
    file = tmp_path / "layout.json"
    saved.value.save_as(file)
    assert simulate.run([str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert f"{document['tokens_per_s_per_gpu']:,.0f} tokens/s" in page.inner_text(
        "#lead"
    )
    assert complaints == []
    page.close()
