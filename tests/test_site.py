"""The documentation as a site: every page is reached, links hold, nothing is loaded
from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from docs.pictures import pictures

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


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed")
@pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is missing")
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(
    root: Path, tmp_path: Path
) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "search/search_index.json").exists()
    for page in tmp_path.rglob("*.html"):
        found = Loaded(page.read_text()).found
        assert [one for one in found if re.match(r"(https?:)?//", one)] == []
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text())
