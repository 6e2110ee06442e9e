"""What a command writes takes the place of nothing that it reads or writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from costmodel.__main__ import main as simulate
from planner.__main__ import main as plan
from profiles.errors import Contradiction
from profiles.files import require_apart

RUNS = "model,gpus,tp\ngpt-tiny,8,8\n"
SMALL = ("--model", "gpt-tiny", "--gpus", "2")


def test_files_are_known_by_where_they_are(tmp_path: Path) -> None:
    file, link = tmp_path / "a.json", tmp_path / "link.json"
    file.touch()
    link.symlink_to(file)
    require_apart({"--out": file, "--trace": None}, (tmp_path / "b.json", None))
    for read in (file, link, str(tmp_path / "folder" / ".." / "a.json")):
        with pytest.raises(Contradiction, match="written over"):
            require_apart({"--out": file}, (read,))
    with pytest.raises(Contradiction, match=r"--trace .* is where --out writes"):
        require_apart({"--out": file, "--trace": link}, ())


@pytest.mark.parametrize(
    ("command", "argv", "name"),
    [
        (simulate, ("--runs", "FILE", "--report", "FILE"), "runs.html"),
        (
            plan,
            (*SMALL, "--sweep", "tp=1", "--csv", "FILE", "--plot", "FILE"),
            "p.html",
        ),
        (
            plan,
            ("gpt-tiny", "--gpus", "1,2", "--cluster", "FILE", "--csv", "FILE"),
            "c",
        ),
        (simulate, ("--model", "FILE", "--gpus", "1", "--out", "FILE"), "m.json"),
        (simulate, ("FILE", "--trace", "FILE"), "layout.json"),
        (simulate, (*SMALL, "--out", "FILE", "--trace", "FILE"), "new.json"),
        (plan, (*SMALL, "--cluster", "FILE", "--out", "FILE"), "c.json"),
        (plan, (*SMALL, "--profile", "FILE", "--out", "FILE"), "p.json"),
        (plan, (*SMALL, "--probe", "2", "--out", "FILE"), "probe-1.json"),
        (plan, ("--diff", "FILE", "FILE", "--out", "FILE"), "a.json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_command_does_not_write_over_what_it_reads(
    command: Callable[..., int],
    argv: tuple[str, ...],
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / name
    held = '{"format": "meshwright/layout"}' if name == "layout.json" else RUNS
    file.write_text(held)
    words = [str(file) if word == "FILE" else word for word in argv]
    assert command(words) == 2
    heard = capsys.readouterr()
    assert (heard.out, heard.err.count("\n")) == ("", 1)
    assert "name another file" in heard.err
    assert file.read_text() == held
