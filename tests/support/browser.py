"""Chromium driven by Playwright, where both are there; what a page complains of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
READY = "html[data-ready=yes]"


@contextmanager
def browser() -> Iterator[Any]:
    """A browser without a window; skips where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not here")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("Chromium is not installed")
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0  # it has no sandbox then
    with api.sync_playwright() as play:
        started = play.chromium.launch(
            executable_path=found, args=["--no-sandbox"] if as_root else []
        )
        try:
            yield started
        finally:
            started.close()


def watched(started: Any, **settings: Any) -> tuple[Any, list[str], list[str]]:
    """A page, with what it complains of and what it loads."""
    page = started.new_page(**settings)
    complaints: list[str] = []
    loaded: list[str] = []

    def said(message: Any) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    page.on("console", said)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: loaded.append(request.url))
    return page, complaints, loaded
