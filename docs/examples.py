"""Run the Python examples of a page, and put what they print below them.

    python -m docs.examples docs/api.md            rewrite the page
    python -m docs.examples --check docs/api.md    exit 1 if anything would change

A ```python block is an example; the ```text block right after it is what it prints.
The examples of a page run in order, as one program, in a folder of their own.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

EXAMPLE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n.*?^```\n)?", re.M | re.S
)


def rerun(page: str) -> str:
    """*page* with the output of every example made anew; raises what an example does
    not expect."""
    names: dict[str, Any] = {"__name__": "example"}

    def example(match: re.Match[str]) -> str:
        printed = StringIO()
        with redirect_stdout(printed):
            exec(match["code"], names)  # the page is our own
        shown = f"\n```text\n{printed.getvalue()}```\n" if printed.getvalue() else ""
        return f"```python\n{match['code']}```\n{shown}"

    return EXAMPLE.sub(example, page)


def main(arguments: list[str]) -> int:
    """Rewrite the pages named, or only say which would change."""
    stale = []
    for page in (Path(one).absolute() for one in arguments if one != "--check"):
        before, folder = page.read_text(encoding="utf-8"), Path.cwd()
        with TemporaryDirectory() as place:
            os.chdir(place)
            try:
                after = rerun(before)
            finally:
                os.chdir(folder)
        if after != before:
            stale.append(page.name)
            if "--check" not in arguments:
                page.write_text(after, encoding="utf-8")
    print("changed: " + (", ".join(stale) or "nothing"))
    return int("--check" in arguments and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
