"""A file on a drive: what comes back, what is counted, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from profiles.errors import Unsupported
from profiles.system.mmap_file import (
    PAGE_BYTES,
    DriveFile,
    Part,
    default_folder,
    in_memory,
    require_room,
    whole_pages,
)
from profiles.units import PFLOPS


def test_what_is_left_comes_back_and_is_counted(tmp_path: Path) -> None:
    parts = [Part(number * PAGE_BYTES, PAGE_BYTES) for number in range(4)]
    file = DriveFile(tmp_path, 4 * PAGE_BYTES)
    for number, part in enumerate(parts):
        file.map[part.first : part.first + part.size_bytes] = bytes([number]) * (
            PAGE_BYTES
        )
        file.leave(part)
    file.settle()
    assert (file.read_bytes, file.written_bytes) == (0, 4 * PAGE_BYTES)
    for number, part in enumerate(parts):
        file.ahead(part)
        assert file.map[part.first] == file.map[part.first + PAGE_BYTES - 1] == number
        file.forget(part)
    assert (file.read_bytes, file.written_bytes) == (4 * PAGE_BYTES, 4 * PAGE_BYTES)
    assert list(tmp_path.iterdir()) == []


def test_its_space_is_taken_at_once(tmp_path: Path) -> None:
    """A drive that is full says so then, and not in the middle of a step."""
    with pytest.raises(Unsupported, match=r"takes no file .*(space|large|quota).*make"):
        DriveFile(tmp_path, int(PFLOPS) * PAGE_BYTES)
    assert list(tmp_path.iterdir()) == []


def test_room_is_asked_for_in_words(tmp_path: Path) -> None:
    require_room(tmp_path, PAGE_BYTES, "a test")
    with pytest.raises(Unsupported, match=r"a test needs .* TiB in .* free; make room"):
        require_room(tmp_path, PFLOPS, "a test")
    missing = tmp_path / "missing"
    with pytest.raises(Unsupported, match=r"no such file.*--offload-dir DIR"):
        require_room(missing, PAGE_BYTES, "a test")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(Unsupported, match=r"not a directory.*--offload-dir DIR"):
        require_room(file, PAGE_BYTES, "a test")


def test_a_folder_in_memory_is_known(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    inner = tmp_path / "inner"
    inner.mkdir()
    mounts.write_text(f"/dev/a / ext4 rw 0 0\ntmpfs {inner} tmpfs rw 0 0\n")
    assert in_memory(inner, mounts)
    assert in_memory(inner / "deeper", mounts)
    assert not in_memory(tmp_path, mounts)
    assert not in_memory(tmp_path, tmp_path / "nowhere")


def test_the_default_is_there() -> None:
    assert default_folder().is_dir()
    assert whole_pages(PAGE_BYTES) == PAGE_BYTES
    assert os.access(default_folder(), os.W_OK)
