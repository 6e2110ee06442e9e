"""The checks of `systems.md`, from the tests that make them.

A test that shows a row of the reading list says so, and notes what it found:

    @pytest.mark.row("E8", "slots at D = N = 16, t_b = 2 t_f", expected="76")
    def test_slots_of_chimera(obtained: Obtained) -> None:
        obtained(slots)

    python -m docs.systems            run those tests; put what they say in the page
    python -m docs.systems --check    run nothing: exit 1 if the page lacks a check

`evidence` is where the expected number is from: "seen" (read in the source),
"computed" (from its formula), or how one from memory was verified or derived; `misses`
says why it is not reached.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "systems.md"
BEGIN, END = "<!-- checks -->\n", "<!-- end of the checks -->"
HEAD: Final = """| row | check | expected | obtained | from | test |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What one test shows of one row."""

    row: str
    check: str
    expected: str
    evidence: str
    misses: str  # why what is obtained is not what is expected; empty where it is
    file: str  # from the root
    function: str

    @property
    def test(self) -> str:
        """Its name for pytest."""
        return f"{self.file}::{self.function}"

    def line(self, obtained: str) -> str:
        """Its row of the table."""
        obtained += f" (misses: {self.misses})" if self.misses else ""
        cells = (self.row, self.check, self.expected, obtained, self.evidence)
        return f"| {' | '.join(cells)} | `{self.test}` |"


def checks(tests: Path = ROOT / "tests") -> list[Check]:
    """All that tests are marked with, by row; read, not run."""
    found = (
        check
        for path in sorted(tests.rglob("test_*.py"))
        for check in _marks(path.relative_to(tests.parent).as_posix(), path)
    )
    return sorted(found, key=lambda one: (one.row[0], int(one.row[1:]), one.test))


def _marks(name: str, path: Path) -> Iterator[Check]:
    text = path.read_text(encoding="utf-8")
    if "mark.row(" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith(
                "mark.row"
            ):
                row, check = map(ast.literal_eval, mark.args)
                named = {
                    one.arg or "": str(ast.literal_eval(one.value))
                    for one in mark.keywords
                }
                yield Check(
                    row=row,
                    check=check,
                    expected=named["expected"],
                    evidence=named.get("evidence", "seen"),
                    misses=named.get("misses", ""),
                    file=name,
                    function=node.name,
                )


def obtained(report: Path) -> dict[str, str]:
    """What each marked test noted, of pytest's JUnit report; its cases joined."""
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        function = case.attrib["name"].partition("[")[0]
        file = case.attrib["classname"].replace(".", "/") + ".py"
        noted = [
            one.attrib["value"]
            for one in case.iter("property")
            if one.attrib["name"] == "obtained"
        ]
        if not noted:  # a law, whose examples are many
            noted = ["not run" if case.find("skipped") is not None else "holds"]
        kept = found.setdefault(f"{file}::{function}", [])
        kept += [one for one in noted if one not in kept]
    return {test: "; ".join(values) for test, values in found.items()}


def measured() -> dict[str, str]:
    """Run the marked tests. Raises CalledProcessError where one fails."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = ["-m", "pytest", "-q", "-m", "row", "--junitxml", str(report)]
        subprocess.run(
            [sys.executable, *command, "-n", "2", "tests"],
            cwd=ROOT,
            check=True,
            stdout=sys.stderr,
        )
        return obtained(report)


def table(values: Mapping[str, str]) -> str:
    """The table of all checks, with what was obtained."""
    return HEAD + "\n".join(
        check.line(values.get(check.test) or "not run") for check in checks()
    )


def lacking(text: str) -> list[Check]:
    """Checks of tests that the page *text* does not show as they are."""
    shown = {line.split(" | ")[-1] + line.split(" | ")[0] for line in _lines(text)}
    return [
        check
        for check in checks()
        if f"`{check.test}` || {check.row}" not in shown
        or check.expected not in text
        or check.check not in text
    ]


def _lines(text: str) -> list[str]:
    inside = text.partition(BEGIN)[2].partition(END)[0]
    return [line for line in inside.splitlines()[2:] if line.startswith("|")]


def main() -> int:
    """Rewrite the page's table, or say what it lacks."""
    text = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        missing = lacking(text)
        for check in missing:
            print(f"{check.row}: {check.test} is not in {PAGE.name}")
        return int(bool(missing))
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{table(measured())}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
