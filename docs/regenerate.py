"""Run every command that the documentation shows, and put its output there.

A shown command is a fenced block whose first line starts with ``$ ``; everything after
it, up to the closing fence, is replaced by what the command prints now:

    python -m docs.regenerate            rewrite README.md and docs/*.md
    python -m docs.regenerate --check    exit 1 if any block would change

Tables that are read off the data are put where a page marks their place, and the
pictures of docs/pictures are drawn. What is
read from published measurements stays as it is where MESHWRIGHT_DATA is unset.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from benchmarks import gpu_steps
from docs.architecture import drawing, table
from docs.draw import pictures
from docs.support_tables import frameworks_table, support_table

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```console\n\$ (?P<command>[^\n]+)\n.*?^```$", re.M | re.S)
TABLE = re.compile(
    r"(?P<before>^<!-- (?P<name>\w+) table -->\n).*?"
    r"(?P<after>^<!-- end of the (?P=name) table -->$)",
    re.M | re.S,
)
TABLES = {
    "support": support_table,
    "frameworks": frameworks_table,
    "gpu": lambda: "\n".join(gpu_steps.table(list(gpu_steps.steps()))),
    "architecture": lambda: f"{drawing()}\n\n{table()}",
}
FROM_DATA = ("python benchmarks/choices.py",)
PROGRAMS = ("plan", "simulate", "profile", "execute", "meshwright", "python")


def pages() -> list[Path]:
    """The pages whose output is regenerated."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def output_of(command: str) -> str:
    """What *command* prints, in a folder of its own choosing: the checkout."""
    program, *arguments = shlex.split(command)
    if program not in PROGRAMS:
        raise SystemExit(f"{command!r}: only {', '.join(PROGRAMS)} are run")
    beside = Path(sys.executable).parent
    done = subprocess.run(
        [str(beside / program), *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (done.stdout + done.stderr).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def regenerated(text: str) -> str:
    """*text* with every shown command's output made anew."""

    def block(match: re.Match[str]) -> str:
        command = match["command"]
        if command in FROM_DATA and not os.environ.get("MESHWRIGHT_DATA"):
            return match[0]
        return f"```console\n$ {command}\n{output_of(command)}\n```"

    text = TABLE.sub(
        lambda found: f"{found['before']}{TABLES[found['name']]()}\n{found['after']}",
        text,
    )
    return BLOCK.sub(block, text)


def main() -> int:
    """Rewrite the pages, or only say which would change."""
    stale = []
    for page in pages():
        before = page.read_text()
        after = regenerated(before)
        if after != before:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(after)
    for name, drawn in pictures():
        file = ROOT / "docs" / "pictures" / name
        if not file.exists() or file.read_text() != drawn:
            stale.append(name)
            if "--check" not in sys.argv:
                file.write_text(drawn)
    print("changed: " + (", ".join(stale) or "nothing"))
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
