"""What is shown: documents that always parse, tables that fit."""

from __future__ import annotations

import io
import json
import math
import sys
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.commandline.progress_line import progress
from profiles.commandline.terminal import console, emit_json
from profiles.hardware.precisions import Format

Capture = pytest.CaptureFixture[str]
DOCUMENTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ),
)


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def has_no_hole(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(has_no_hole, value.values()))
    if isinstance(value, list):
        return all(map(has_no_hole, value))
    return not isinstance(value, float) or math.isfinite(value)


def test_keys_keep_their_order(capsys: Capture) -> None:
    emit_json({"z": 1, "a": {"y": 2, "b": 3}})
    assert list(strict(capsys.readouterr().out)) == ["z", "a"]


def test_numpy_and_names_are_plain(capsys: Capture) -> None:
    emit_json({"n": np.int64(3), "x": np.arange(2), "f": Format.BF16, "o": np.True_})
    expected = {"n": 3, "x": [0, 1], "f": "bf16", "o": True}
    assert strict(capsys.readouterr().out) == expected


@given(document=DOCUMENTS)
def test_a_document_is_exact_or_refused(document: dict[str, Any]) -> None:
    from contextlib import redirect_stdout
    from io import StringIO

    written = StringIO()
    with redirect_stdout(written):
        try:
            emit_json(document)
        except ValueError:
            assert not has_no_hole(document)
            assert written.getvalue() == ""
            return
    assert strict(written.getvalue()) == document


def test_a_number_that_is_none_is_named(capsys: Capture) -> None:
    document = {"estimate": {"breakdown_s": [0.0, math.inf]}, "x": np.float64("nan")}
    wrong = r"estimate\.breakdown_s\[1\] = inf, x = nan"
    with pytest.raises(ValueError, match=wrong):
        emit_json(document)
    assert capsys.readouterr().out == ""


def test_a_table_away_from_a_terminal_is_plain_and_wide(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    plain = console()
    assert (plain.width, plain.is_terminal) == (100, False)
    plain.print("[bold]a user's name[/] :warning:", style="red")
    assert capsys.readouterr().out == "[bold]a user's name[/] :warning:\n"


def test_what_is_not_the_answer_goes_to_stderr(capsys: Capture) -> None:
    console(stderr=True).print("counting")
    with progress("counting") as advance:
        advance(1, 2)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "counting\n")


def test_a_reader_that_left_is_told_to_whoever_prints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Left())
    with pytest.raises(BrokenPipeError):
        console().print("a table")


def test_the_user_may_say_how_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "132")
    assert console().width == 132
    monkeypatch.setenv("COLUMNS", "0")
    assert console().width == 100


class Grudging(io.RawIOBase):
    """A file that takes a few bytes at a time, and then no more."""

    def __init__(self, room: int) -> None:
        self.room, self.taken = room, b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data[:7])
        if len(self.taken) + len(piece) > self.room:
            raise OSError(28, "No space left on device")
        self.taken += piece
        return len(piece)


def test_a_document_is_written_to_its_last_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PYTHONUNBUFFERED's stdout forgets what a short write leaves."""
    document = {"numbers": list(range(100))}
    for room in (10_000, 50):
        file = Grudging(room)
        unbuffered = io.TextIOWrapper(cast(Any, file), "utf-8", write_through=True)
        monkeypatch.setattr(sys, "stdout", unbuffered)
        if room == 50:
            with pytest.raises(OSError, match="No space left"):
                emit_json(document)
        else:
            emit_json(document)
            assert json.loads(file.taken) == document
