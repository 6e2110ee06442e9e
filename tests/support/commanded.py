"""The command `simulate`, as tests call it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from costmodel.__main__ import main


def simulate(*argv: str) -> int:
    return main([*argv], prog="simulate")


def answered(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    """Its document; nothing else was printed."""
    assert simulate(*argv, "--json") == 0
    said = capsys.readouterr()
    assert said.err == ""
    document: dict[str, Any] = json.loads(said.out)
    return document


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that says what is wrong; nothing else was printed."""
    assert simulate(*argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err
