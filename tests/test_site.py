"""The documentation as a site: every page is reached, links hold, nothing is loaded
from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from docs.draw import pictures
from tests.support.browser import browser, watched

LOADING = {"script": "src", "link": "href", "img": "src", "iframe": "src"}


def listed(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(value, list):
            yield from listed(value)
        else:
            yield value


def test_every_page_is_in_the_navigation_once(root: Path) -> None:
    nav = yaml.safe_load((root / "mkdocs.yml").read_text())["nav"]
    pages = sorted(listed(nav))
    assert pages == sorted(page.name for page in (root / "docs").glob("*.md"))


def test_pictures_are_drawn_and_shown(root: Path) -> None:
    shown = (root / "docs/concepts.md").read_text()
    for name, drawn in pictures():
        assert f"](pictures/{name})" in shown
        assert (root / "docs/pictures" / name).exists()
        picture = ElementTree.fromstring(drawn)
        assert picture.attrib["aria-label"]
        wide, high = map(float, picture.attrib["viewBox"].split()[2:])
        for box in picture.iter("{http://www.w3.org/2000/svg}rect"):
            assert 0 <= float(box.attrib["x"]) <= wide
            assert float(box.attrib["x"]) + float(box.attrib["width"]) <= wide
            assert float(box.attrib["y"]) + float(box.attrib["height"]) <= high


class Loaded(HTMLParser):
    """What a page loads by itself."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        where = dict(attrs).get(LOADING.get(tag, ""))
        if where is not None and dict(attrs).get("rel") not in ("canonical", "next"):
            self.found.append(where)


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site; skips where it cannot be built."""
    for name in ("mkdocs", "material"):
        if find_spec(name) is None:
            pytest.skip("mkdocs-material is not installed: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    assert (site / "search/search_index.json").exists()
    for page in site.rglob("*.html"):
        found = Loaded(page.read_text()).found
        assert [one for one in found if re.match(r"(https?:)?//", one)] == []
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text())


@pytest.mark.parametrize(("wide", "scheme"), [(1280, "light"), (390, "dark")])
def test_in_a_browser_it_fits_and_its_search_finds(
    site: Path, wide: int, scheme: str
) -> None:
    quiet = partial(Quiet, directory=str(site))
    with browser() as started, ThreadingHTTPServer(("127.0.0.1", 0), quiet) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        settings = {"viewport": {"width": wide, "height": 800}, "color_scheme": scheme}
        page, complaints, loaded = watched(started, **settings)
        here = f"http://127.0.0.1:{server.server_port}/"
        for name in ("plan", "concepts", "comparison", "index"):
            page.goto(f"{here}{name}.html")
            page.wait_for_load_state("networkidle")
            assert page.evaluate("document.documentElement.scrollWidth") <= wide
        page.goto(f"{here}index.html?q=zero-bubble")
        page.wait_for_selector(".md-search-result__item")
        assert complaints == []
        assert [one for one in loaded if not one.startswith((here, "data:"))] == []
        page.close()
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass
