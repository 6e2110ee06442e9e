"""`profiles.files`: strangers' files are read or refused in one line."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InvalidFile, InvalidSpec
from profiles.files import decode, names_a_file, read_json, require_name, write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    length: float
    toes: int = 5

    def __post_init__(self) -> None:
        if self.length <= 0:
            raise InvalidSpec(f"length must be > 0, got {self.length}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Animal:
    name: str
    legs: tuple[Leg, ...] = ()
    tail: Leg | None = None
    wings: Mapping[str, Leg] = field(default_factory=dict)


DEER = {"name": "deer", "legs": [{"length": 1}, {"length": 1.5}]}


def fault(given: object, kind: type = Animal) -> str:
    with pytest.raises((InvalidFile, InvalidSpec)) as caught:
        decode(given, kind, what="zoo file z.json")
    message = str(caught.value)
    assert message.startswith("zoo file z.json")
    assert "\n" not in message
    return message


def test_what_is_well_formed_becomes_the_dataclass() -> None:
    found = decode(DEER, Animal, what="zoo")
    assert found == Animal(name="deer", legs=(Leg(length=1), Leg(length=1.5)))
    assert isinstance(found.legs[0].length, float)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"legs": [{"length": 1, "toe": 3}]}, "unknown key toe in legs[0]; did you"),
        ({"nmae": "x"}, "unknown key nmae; did you mean name?"),
        ({"tail": {"colour": 1}}, "unknown key colour in tail; allowed: length, toes"),
        ({"wings": {"left": {"x": 1}}}, "unknown key x in wings.left"),
        ({"legs": [{"length": "long"}]}, "legs[0].length: expected float, got str"),
        ({"legs": [{}]}, "legs[0]: object missing required field length"),
        ({"legs": [{"length": 1, "toes": 2.5}]}, "legs[0].toes: expected int"),
        ({"legs": [{"length": 1, "toes": True}]}, "legs[0].toes: expected int"),
        ({"legs": 4}, "legs: expected array, got int"),
        ({"legs": [{"length": -1}]}, "length must be > 0"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    change: dict[str, object], place: str
) -> None:
    assert place in fault({**DEER, **change})


@pytest.mark.parametrize("document", [None, [], "deer", 3, True])
def test_another_kind_of_document_is_refused(document: object) -> None:
    assert "expected object" in fault(document)


def refusal(path: Path | str, **limits: int) -> str:
    with pytest.raises(InvalidFile) as caught:
        read_json(path, what="model file", **limits)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    return message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "truncated or invalid JSON"),
        (b'{"a": 1', "truncated or invalid JSON"),
        (b'{"a": 1} x', "truncated or invalid JSON"),
        (b'{"a": NaN}', "truncated or invalid JSON"),
        (b'{"a": Infinity}', "truncated or invalid JSON"),
        (b'{"a": 1e999}', "truncated or invalid JSON"),
        (b'{"a": "\\ud800"}', "truncated or invalid JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "invalid JSON"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"a":' * 200_000, "nested too deep"),
        (b"\x00" * 64, "truncated or invalid JSON"),
        (b"9" * 10_000, "truncated or invalid JSON"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(content)
    assert said in refusal(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.json")
    assert "is a folder" in refusal(tmp_path)
    assert "not a path" in refusal("nul\0.json")
    assert "cannot be read" in refusal("x" * 5000)
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    assert "not a regular file" in refusal(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "cannot be read" in refusal(tmp_path / "loop")


def test_a_file_may_be_as_large_as_allowed_and_no_larger(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text("[" + "1," * 49 + "1]")
    assert read_json(path, what="m", most_bytes=101) == [1] * 50
    assert "larger than 100 B" in refusal(path, most_bytes=100)


def test_a_byte_order_mark_is_forgiven(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text('{"a": "é"}', encoding="utf-8-sig")
    assert read_json(path, what="m") == {"a": "é"}


def test_a_strange_path_does_not_break_the_line(tmp_path: Path) -> None:
    assert "'" in refusal(tmp_path / "two\nlines\x1b[2J")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    try:
        found = read_json(path, what="m")
    except InvalidFile as error:
        said = str(error)
    else:
        said = json.dumps(found, allow_nan=False)
    assert "\n" not in said


def test_names_are_printable() -> None:
    require_name("gpt-13b")
    for name in ("", "a\nb", "\x1b[31m", "x" * 101):
        with pytest.raises(InvalidSpec, match="printable"):
            require_name(name)


def test_what_looks_like_a_path_is_one(tmp_path: Path) -> None:
    assert names_a_file(str(tmp_path))
    assert names_a_file("Nodes.JSON")
    assert not names_a_file("gpt-14b\0")
    assert not names_a_file("x" * 5000)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_text(path, "one é\n")
    assert path.read_bytes() == "one é\n".encode()
    path.chmod(0o640)
    write_text(path, "two\n")
    assert path.read_text() == "two\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert files(tmp_path) == ["out.json"]


def test_a_new_file_is_as_open_as_others(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_text(tmp_path / "out", "x")
    modes = {(tmp_path / name).stat().st_mode for name in ("plain", "out")}
    assert len(modes) == 1


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, full)
    with pytest.raises(InvalidFile, match="no space left on device"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert files(tmp_path) == ["out.json"]


def test_an_interrupt_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "out.json", "new")
    assert files(tmp_path) == []


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path, "is a folder"),
        (tmp_path / "absent" / "out", "no such file or directory"),
        (Path(os.devnull), "not a regular file"),
        (tmp_path / ("x" * 300), "file name too long"),
        ("nul\0", "cannot be written"),
    ):
        with pytest.raises(InvalidFile, match=said):
            write_text(path, "text")
    with pytest.raises(InvalidFile, match="cannot be written"):
        write_text(tmp_path / "half", "\ud800")
    assert files(tmp_path) == []


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "text"
