"""`runtime.checkpoint.replica`: what living ranks hold becomes a checkpoint, if it is
all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.checkpoint.checkpoint import Snapshot
from runtime.checkpoint.directory import Retention, latest
from runtime.checkpoint.manifest import read_meta
from runtime.checkpoint.replica import inventory, salvaged, write_alone
from runtime.checkpoint.verification import verified
from tests.runtime import checkpoint_cases as cases
from tests.runtime.checkpoint_cases import META, built, restored, same, stored
from tests.runtime.ranks import on_ranks

KEEP = Retention()


def written_by(rank: int, folder: Path, layout: str) -> Any:
    """What a rank writes by itself after two steps."""
    part = built(layout)
    whole = inventory(part.modules)
    part.step(0)
    part.step(1)
    one = Snapshot.of(2, part.modules, part.optimizer, META)
    write_alone(folder, rank, one, whole)
    return part.whole()


@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_pieces_of_all_ranks_are_a_checkpoint(tmp_path: Path, layout: str) -> None:
    first, second = on_ranks(2, written_by, tmp_path, layout)
    (line,) = salvaged(tmp_path, META, KEEP)
    assert line == "step 2 is recovered from what ranks 0, 1 held"
    assert same(restored(tmp_path).whole(), {**first, **second})
    assert not any(one.faults for one in verified(tmp_path))
    assert [one.name for one in tmp_path.iterdir()] == ["step-000002"]


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_one_rank_is_enough_where_the_other_is_its_replica(
    tmp_path: Path, layout: str, lost: int
) -> None:
    states = on_ranks(2, written_by, tmp_path, layout)
    shutil.rmtree(tmp_path / "emergency-000002" / f"rank-{lost}")
    (line,) = salvaged(tmp_path, META, KEEP)
    if layout in ("plain", "replicate"):
        assert line == f"step 2 is recovered from what ranks {1 - lost} held"
        assert same(restored(tmp_path).whole(), states[0])
    else:
        assert line.startswith("what ranks wrote of step 2 lacks model.")
        assert latest(tmp_path) is None
    assert not list(tmp_path.glob("emergency-*"))


def test_the_newest_step_that_is_whole_is_taken(tmp_path: Path) -> None:
    part = built("plain")
    whole = inventory(part.modules)
    stored(tmp_path, part, step=1)
    for step in (1, 2, 3):
        part.step(step)
        one = Snapshot.of(step, part.modules, part.optimizer, META)
        write_alone(tmp_path, 0, one, whole)
        if step == 2:
            before = part.whole()
    file = tmp_path / "emergency-000003" / "rank-0" / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])
    (taken,) = salvaged(tmp_path, META, KEEP)
    assert taken.startswith("step 2 is recovered")
    assert same(restored(tmp_path).whole(), before)
    parent = read_meta(tmp_path / "step-000002")["parent"]
    assert parent["content"] == read_meta(tmp_path / "step-000001")["content"]


def test_what_is_older_or_of_another_job_is_let_go(tmp_path: Path) -> None:
    part = built("plain")
    whole = inventory(part.modules)
    for step, meta in ((1, META), (9, {"job": "another"})):
        one = Snapshot.of(step, part.modules, part.optimizer, meta)
        write_alone(tmp_path, 0, one, whole)
    stored(tmp_path, part, step=1)
    (line,) = salvaged(tmp_path, META, KEEP)
    assert "step 9 lacks" in line
    assert [one.name for one in tmp_path.iterdir()] == ["step-000001"]


def test_before_the_first_step_there_is_no_state_to_lack(tmp_path: Path) -> None:
    part = built("plain")
    one = Snapshot.of(0, part.modules, part.optimizer, META)
    write_alone(tmp_path, 0, one, inventory(part.modules))
    assert salvaged(tmp_path, META, KEEP)
    assert same(restored(tmp_path).whole(), part.whole())
    assert torch.is_tensor(part.whole()["model.table.weight"])
