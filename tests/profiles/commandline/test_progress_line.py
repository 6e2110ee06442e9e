"""Progress: on a terminal only, for long work only, without codes, without a trace."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace

import pytest

import profiles.commandline.progress_line as module
from profiles.commandline.progress_line import counted, hush, progress, quiet, waiting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> str:
        """What is left to see of the last line."""
        shown: list[str] = []
        for part in self.getvalue().split("\r"):
            shown[: len(part)] = part
        return "".join(shown).strip()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=made))  # not pytest's
    monkeypatch.setenv("COLUMNS", "80")
    return made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    monkeypatch.setattr(module, "SLOWLY_S", 0.02)


def test_short_work_shows_nothing(terminal: Terminal) -> None:
    with waiting("plan"), progress("pricing") as advance:
        advance(1, 2)
    assert list(counted("abc", 3, "reading")) == ["a", "b", "c"]
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("impatient")
def test_a_share_and_an_estimate_are_shown_and_do_not_stay(terminal: Terminal) -> None:
    with progress("pricing") as advance:
        time.sleep(0.01)
        advance(1, 4)
        assert terminal.screen().startswith("pricing: 25 %, about ")
        hush()
        assert terminal.screen() == ""
        advance(2, 4)
        assert "50 %" in terminal.screen()
    assert terminal.screen() == ""
    assert "\x1b" not in terminal.getvalue()
    assert "\n" not in terminal.getvalue()


@pytest.mark.usefixtures("impatient")
def test_a_command_that_says_nothing_is_said_to_work(terminal: Terminal) -> None:
    with waiting("plan"):
        time.sleep(0.1)
        assert terminal.screen().startswith("plan: ")
        with progress("pricing") as advance:  # which has more to say
            advance(1, 2)
            time.sleep(0.06)
            assert terminal.screen().startswith("pricing: ")
        quiet()
        assert terminal.screen() == ""
        before = terminal.getvalue()
        time.sleep(0.06)
        assert terminal.getvalue() == before


@pytest.mark.usefixtures("impatient")
def test_a_line_is_no_longer_than_the_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    with progress("a name that is rather long") as advance:
        advance(1, 2)
        assert len(terminal.screen()) == 19


@pytest.mark.usefixtures("impatient")
def test_where_nobody_watches_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("plan"), progress("pricing") as advance:
        advance(1, 2)
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
