"""The tables of other frameworks' files: every layout is read back as it was."""

from __future__ import annotations

import pytest

from benchmarks.formats import READ, round_trips


def test_what_is_exported_is_read_back() -> None:
    pytest.importorskip("yaml", reason="PyYAML reads accelerate's file")
    lines = list(round_trips())
    said = [line for line in lines if "read back" in line and line.startswith("  ")]
    assert len(said) == len(READ)
    assert all(line.endswith("read back the same") for line in said)
