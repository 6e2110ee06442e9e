"""`runtime.launch.agent`: what is shown, and that a run outlives who reads it."""

from __future__ import annotations

import io
from pathlib import Path

from runtime.launch.agent import Relay


class Left(io.StringIO):
    """Somebody who reads one line, as `head -1` does."""

    def write(self, text: str) -> int:
        if self.getvalue():
            raise BrokenPipeError
        return super().write(text)


def test_lines_come_as_they_are_written_and_the_last_one_is_ended(
    tmp_path: Path,
) -> None:
    file, shown = tmp_path / "log", io.StringIO()
    with Relay(shown) as relay:
        relay.turn_to([file])
        file.write_text("one\ntw")
        relay.turn_to([file], "again")
        file.write_text("three")
    assert shown.getvalue() == "one\ntw\nagain\nthree\n"


def test_a_reader_that_leaves_ends_no_run(tmp_path: Path) -> None:
    file, reader = tmp_path / "log", Left()
    with Relay(reader) as relay:
        relay.turn_to([file], "first")
        for number in range(3):
            file.write_text("line\n" * number)
            relay.turn_to([file], "again")
    assert reader.getvalue() == "first\n"
