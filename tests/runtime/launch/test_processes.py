"""`runtime.launch.processes` and the last words of a worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from profiles.errors import InvalidSpec, Unsupported
from runtime.launch.failures import (
    FOLDER,
    LAUNCHER,
    ending,
    failed_workers,
    failure_in,
    failure_report,
    status,
    words_in,
)
from runtime.launch.processes import local_device, process_group, restarts

SIGTERM, SIGKILL, SIGSEGV = -15, -9, -11


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process is rank 3 under a launcher."""
    status.cache_clear()
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    return tmp_path


def test_one_process_alone_is_a_group() -> None:
    with process_group(timeout_s=20) as worker:
        total = torch.ones(2)
        dist.all_reduce(total)
        assert total.tolist() == [1, 1]
        assert (worker.rank, worker.world_size, worker.device.type) == (0, 1, "cpu")
        assert dist.get_backend() == "gloo"
    assert not dist.is_initialized()
    assert restarts() == 0


def test_the_group_ends_with_an_error_inside() -> None:
    with pytest.raises(KeyError), process_group(timeout_s=20):
        raise KeyError
    assert not dist.is_initialized()


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(torch.cuda.device_count()))
    for kind in ("cuda", "tpu"):
        with pytest.raises(Unsupported, match=f"device {kind} "):
            local_device(kind)


def test_without_a_launcher_nothing_is_said() -> None:
    status.cache_clear()
    status(0).say("step 1")
    status(0).fail(ValueError("no"))


def test_the_last_words_stay(folder: Path) -> None:
    said = status(3)
    assert words_in(folder) == ""
    said.say("step 12, 0F3 → a long way")
    said.say("step 13")
    assert words_in(folder) == "step 13"
    said.say("é" * 1000)
    assert words_in(folder).startswith("é" * 100)
    assert status(3) is said


def test_only_its_own_rank_speaks(folder: Path) -> None:
    status(2).say("not me")
    assert words_in(folder) == "its start"


def test_an_error_is_left_with_its_kind_unless_it_is_ours(folder: Path) -> None:
    assert failure_in(folder) is None
    for error, text in (
        (ValueError("two\nlines"), "ValueError: two\nlines\n"),
        (InvalidSpec("a bad layout"), "a bad layout\n"),
        (MemoryError(), "MemoryError: MemoryError\n"),
    ):
        status(3).fail(error)
        left = failure_in(folder)
        assert left is not None
        assert left[1] == text
        assert left[0] > 0


def left(root: Path, rank: int, error: str, time_ns: int = 1) -> Path:
    folder = root / str(rank)
    folder.mkdir()
    (folder / "words").write_bytes(f"step {rank}".encode())
    if error:
        (folder / "failure").write_text(f"{time_ns}\nRuntimeError\n{error}\n")
    return folder


LOST = "Connection closed by peer [127.0.0.1]:2001"


@pytest.mark.parametrize(
    ("exits", "errors", "first"),
    [
        ((1, SIGKILL, SIGTERM), (LOST, "", ""), 1),
        ((1, 1, SIGTERM), (LOST, "no memory", ""), 1),
        ((1, 1, 1), ("late", "early", LOST), 1),
        ((SIGTERM, SIGTERM, 3), ("", "", ""), 2),
        ((SIGTERM, SIGSEGV, 1), ("", "", "no memory"), 1),
        ((1, SIGTERM, SIGTERM), (LOST, "", ""), 0),
    ],
)
def test_the_cause_is_told_and_not_what_followed(
    tmp_path: Path, exits: tuple[int, ...], errors: tuple[str, ...], first: int
) -> None:
    folders = {
        rank: left(tmp_path, rank, error, time_ns=100 - 10 * rank)
        for rank, error in enumerate(errors)
    }
    ends = {rank: (code, 200) for rank, code in enumerate(exits)}
    line = failure_report(failed_workers(ends, folders))
    assert line.startswith(f"rank {first} {ending(exits[first])} in step {first}")
    assert ("rank 1 was in step 1" in line) == (errors[first] == LOST)


def test_source_lines_and_control_characters_are_left_out(tmp_path: Path) -> None:
    error = "[/__w/gloo/tcp/pair.cc:78] Timed\x1b[31m out\n waiting " + "long " * 200
    line = failure_report(failed_workers({0: (1, 0)}, {0: left(tmp_path, 0, error)}))
    assert "RuntimeError: Timed?[31m out waiting long" in line
    assert len(line) < 500


@pytest.mark.slow
def test_a_worker_whose_launcher_is_gone_ends_at_once(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """It was killed while the worker loaded torch, too early to be told of."""
    module = "runtime.launch.processes"
    program = f"import {module} as p; p.process_group(timeout_s=60).__enter__()"
    lost = {FOLDER: str(tmp_path), LAUNCHER: "1", "MASTER_ADDR": "192.0.2.1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**environment, **lost}, timeout=60
    )
    assert done.returncode == 1
    assert words_in(tmp_path) == "its start"
