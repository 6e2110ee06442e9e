"""What a benchmark measured, put between the markers of a page in `docs/`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path


def measuring(about: str | None) -> argparse.ArgumentParser:
    """A benchmark's parser, with the first line of what it is *about*, and where what
    it measures goes."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--page", type=Path)
    return parser


def put(page: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- end of the name -->`.

    Raises ValueError for a page without these markers.
    """
    marked = re.compile(
        rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of the {name} -->)", re.S
    )
    written, found = marked.subn(lambda _: text, page.read_text())
    if found != 1:
        raise ValueError(f"{page} has {found} places marked {name!r}; one is needed")
    page.write_text(written)
