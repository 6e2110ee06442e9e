"""`runtime.checkpoint.saver`: beside training, in order, and whatever the disk says."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from runtime.checkpoint import saver as module
from runtime.checkpoint.checkpoint import restore
from runtime.checkpoint.directory import Retention, latest, step_of, whole
from runtime.checkpoint.manifest import read_meta
from runtime.checkpoint.saver import Saver
from runtime.checkpoint.verification import verified
from tests.runtime import checkpoint_cases as cases
from tests.runtime.checkpoint_cases import META, Part, built, restored, same
from tests.runtime.ranks import on_ranks


def saving(folder: Path, said: list[str], **settings: Any) -> Saver:
    return Saver(folder=folder, say=said.append, **{"keep": Retention(), **settings})


def saved(saver: Saver, part: Part, step: int) -> None:
    saver.save(step=step, parts=part.modules, optimizer=part.optimizer, meta=META)


def steps_in(folder: Path) -> list[int]:
    return sorted(step_of(one) for one in whole(folder))


def test_training_goes_on_while_the_copies_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, really = Event(), module.store

    def slow(*given: Any) -> Any:
        assert go_on.wait(20)
        return really(*given)

    monkeypatch.setattr(module, "store", slow)
    part, saver = built("plain"), saving(tmp_path, [], background=True)
    part.step(0)
    saved(saver, part, 1)
    before = part.whole()
    part.step(1)  # while the thread waits
    assert latest(tmp_path) is None
    go_on.set()
    saver.wait()
    assert same(restored(tmp_path).whole(), before)
    part.step(2)
    saved(saver, part, 3)  # in the memory of the first copies
    saver.wait()
    assert same(restored(tmp_path).whole(), part.whole())
    assert not any(one.faults for one in verified(tmp_path))


def test_ranks_save_beside_training_in_every_layout(tmp_path: Path) -> None:
    for seen in on_ranks(2, beside, tmp_path):
        assert list(seen) == list(cases.LAYOUTS)
        for layout, (before, read, failure) in seen.items():
            assert failure == "None", layout
            assert same(before, read), layout


def beside(rank: int, folder: Path) -> dict[str, Any]:
    """By layout: the state that a thread saved while training went on, and as read."""
    found = {}
    for layout in cases.LAYOUTS:
        saver = saving(folder / layout, [], background=True)
        part = built(layout)
        part.step(0)
        saved(saver, part, 1)
        before = part.whole()
        part.step(1)  # with collectives of its own, beside the thread's
        saver.wait()
        again = restored(folder / layout, built(layout, seed=5))
        found[layout] = before, again.whole(), str(saver.failure)
    return found


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12, unique=True),
    st.integers(1, 5),
    st.none() | st.integers(1, 20),
)
def test_what_is_let_go(steps: list[int], newest: int, every: int | None) -> None:
    keep = Retention(newest=newest, every=every)
    gone = keep.outlived(steps)
    stays = sorted(set(steps) - set(gone))
    assert stays[-newest:] == sorted(steps)[-newest:]
    if every is not None:
        assert not [one for one in gone if one % every == 0]
    assert keep.outlived(stays) == [], "once is enough"
    assert len(stays) <= newest + (len(steps) if every else 0)


def test_retention_on_disk(tmp_path: Path) -> None:
    keep = Retention(newest=1, every=4)
    part, saver = built("plain"), saving(tmp_path, [], keep=keep)
    for step in range(2, 12, 2):
        saved(saver, part, step)
    assert steps_in(tmp_path) == [4, 8, 10]
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        f"step-{step:06d}" for step in (4, 8, 10)
    ]


def test_a_damaged_one_is_passed_over_kept_and_does_not_count(tmp_path: Path) -> None:
    part, saver = built("plain"), saving(tmp_path, [])
    states = {}
    for step in (1, 2, 3):
        part.step(step)
        saved(saver, part, step)
        states[step] = part.whole()
    file = tmp_path / "step-000003" / "__0_0.distcp"
    file.write_bytes(bytes(file.stat().st_size))
    again = built("plain", seed=4)
    found = restore(tmp_path, parts=again.modules, optimizer=again.optimizer, meta=META)
    assert found.step == 2
    assert same(again.whole(), states[2])
    (line,) = found.passed_over
    assert "step-000003 is damaged: __0_0.distcp is not as it was written" in line
    follower = saving(tmp_path, [])
    follower.follow(found)
    for step in (4, 5):
        saved(follower, again, step)
    assert steps_in(tmp_path) == [3, 4, 5], "3 is left to whoever wants to look at it"
    parent = read_meta(tmp_path / "step-000004")["parent"]
    assert parent == {"step": 2, "content": found.meta["content"]}


def test_ranks_agree_on_what_is_damaged(tmp_path: Path) -> None:
    """Each looks at some of the files alone."""
    for found in on_ranks(2, passed_over, tmp_path):
        assert found == [1, 1, 1]


def passed_over(rank: int, folder: Path) -> list[int]:
    found = []
    for number in range(3):
        place = folder / str(number)
        part, saver = built("fsdp"), saving(place, [])
        saved(saver, part, 1)
        saved(saver, part, 2)
        files = sorted(one.name for one in (place / "step-000002").glob("*.distcp"))
        if rank == 0 and number < 2:
            (place / "step-000002" / files[number]).write_bytes(b"else")
        elif rank == 0:
            (place / "step-000002" / "meta.json").write_text("{}")
        torch.distributed.barrier()
        read = restore(place, parts=part.modules, optimizer=part.optimizer, meta=META)
        found.append(read.step)
    return found


class FullAt:
    """A disk that has no room from a piece on that is written."""

    def __init__(self, piece: int) -> None:
        self.left, self.really = piece, torch.save

    def __call__(self, *given: Any, **settings: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.really(*given, **settings)


@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_costs_a_line_and_the_last_good_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    said: list[str] = []
    part = built("plain")
    saver = saving(tmp_path, said, background=background)
    saved(saver, part, 1)
    saver.wait()
    before = part.whole()
    for step in range(2, 6):
        part.step(step)
        piece = random.Random(step).randrange(20)
        with monkeypatch.context() as patch:
            patch.setattr("torch.save", FullAt(piece))
            saved(saver, part, step)
            saver.wait()
        assert steps_in(tmp_path) == [1]
        assert len(said) == step - 1
        assert f"step {step} is not saved" in said[-1]
        assert "No space left on device" in said[-1]
        assert said[-1].endswith(" free")
        assert saver.failure is not None
    assert same(restored(tmp_path).whole(), before)
    saved(saver, part, 6)
    saver.wait()
    assert saver.failure is None
    assert steps_in(tmp_path) == [1, 6]
    assert [one.name for one in tmp_path.glob("*.partial")] == []
    assert not any(one.faults for one in verified(tmp_path))


def test_a_disk_that_is_full_for_one_rank_is_for_all(tmp_path: Path) -> None:
    first, second = on_ranks(2, full_for_one, tmp_path)
    assert first == second
    assert all("No space left" in one for one in first)
    assert steps_in(tmp_path) == [9]


def full_for_one(rank: int, folder: Path) -> Sequence[str]:
    said: list[str] = []
    part, saver = built("fsdp"), saving(folder, said, background=True)
    part.step(0)
    for full in (0, 1):
        with pytest.MonkeyPatch.context() as patch:
            if rank == full:
                patch.setattr("torch.save", FullAt(3))
            saved(saver, part, 1 + full)
            saver.wait()
    saved(saver, part, 9)
    saver.wait()
    return said


def test_copies_are_made_once(tmp_path: Path) -> None:
    """Memory of the copies is kept: a run that saves for days does not grow."""
    part, saver = built("plain"), saving(tmp_path, [], background=True)
    part.step(0)
    saved(saver, part, 1)
    places: dict[str, Tensor] = dict(saver._copies)
    saved(saver, part, 2)
    saver.wait()
    assert all(saver._copies[name] is one for name, one in places.items())
