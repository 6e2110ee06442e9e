"""A run whose states are on a drive: room is asked for first, a resumed run goes on."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.simulation.layout_files import write_layout
from profiles.errors import Unsupported
from profiles.models.param_count import parameters
from profiles.system.mmap_file import PAGE_BYTES
from profiles.units import TB
from runtime.launch import run
from runtime.offload import policy as drive_room
from runtime.offload.policy import needed_bytes, require_drive
from tests.runtime.ranks import on_ranks
from tests.runtime.run_options import run_options
from tests.support.training import SEED, trainer_of
from tests.support.training_cases import BATCH, choice_of, job

SAVED, STEPS = 1, 3
META: dict[str, Any] = {"job": {"model": "small", "seq_len": 64}}


def layout_of(name: str) -> Any:
    return spell_out(choice_of("gpt", name), job("gpt").graph, BATCH)


@pytest.mark.parametrize(
    ("name", "ranks", "each"),
    [
        ("drive", 1, 12),
        ("states-drive", 1, 16),
        ("zero1-drive", 2, 16),
        ("zero2-drive", 2, 16),
        ("fsdp2-states-drive", 2, 16),
    ],
)
def test_a_node_needs_value_and_moments_of_every_parameter(
    name: str, ranks: int, each: int
) -> None:
    """And the gradients that are scattered, however they are sharded; in 32 bits
    shards are what is updated."""
    asked = job("gpt")
    trained = parameters(asked.spec).total
    needed = needed_bytes(asked, layout_of(name), ranks)
    assert needed == pytest.approx(each * trained, rel=1e-3)


@pytest.mark.parametrize("name", ["states-drive", "drive"])
def test_the_file_is_as_large_as_what_room_was_asked_for(
    name: str, tmp_path: Path
) -> None:
    (rank,) = on_ranks(1, file_bytes, name, tmp_path)
    needed = needed_bytes(job("gpt"), layout_of(name), 1)
    assert needed <= rank["size"] <= needed + 4 * PAGE_BYTES * rank["buckets"]


def test_room_is_asked_for_before_a_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was about to start")

    file = tmp_path / "layout.json"
    write_layout(file, job("gpt"), "local", layout_of("zero2-drive"))
    monkeypatch.setattr(run, "launch", never)
    assert not run.prepare(run_options(file)).remarks
    monkeypatch.setattr(drive_room, "needed_bytes", lambda *_: 1e6 * TB)
    with pytest.raises(Unsupported, match=r"optimizer to nvme needs 909,495 TiB in"):
        run.prepare(run_options(file))


def test_other_layouts_need_no_drive(tmp_path: Path) -> None:
    plain = spell_out(Uniform(precision="fp32"), job("gpt").graph, BATCH)
    missing = tmp_path / "missing"
    assert require_drive(job("gpt"), plain, missing, local_ranks=1) == ()
    with pytest.raises(Unsupported, match="--offload-dir"):
        require_drive(job("gpt"), layout_of("drive"), missing, local_ranks=1)


def test_a_resumed_run_is_the_whole_one(tmp_path: Path) -> None:
    """Its losses and norms, to the last bit, in 16 bits too; no file is left."""
    for seen in on_ranks(2, resumed, ("zero2-drive", "fsdp2-states-drive"), tmp_path):
        for name, (whole, rest) in seen.items():
            assert whole[SAVED:] == rest, name
            assert len(rest) == STEPS - SAVED
    assert list((tmp_path / "drive").iterdir()) == []


def test_a_scaled_loss_is_that_of_states_in_memory() -> None:
    """Steps that overflow are left out, later ones scaled back and clipped."""
    for seen in on_ranks(2, scaled, ("zero2", "zero2-drive", "fsdp2-states-drive")):
        known, *others = seen
        overflowed = sum(map(isnan, known))
        assert 0 < overflowed < len(known) / 2 - 1
        for other in others:
            assert other == pytest.approx(known, rel=1e-5, nan_ok=True)


def scaled(rank: int, names: tuple[str, ...]) -> list[list[float]]:
    return [_scaled(name) for name in names]


def _scaled(name: str) -> list[float]:
    """The loss and the norm of each step."""
    choice = replace(choice_of("gpt", name), precision="fp16")
    layout = spell_out(choice, job("gpt").graph, BATCH)
    trainer = trainer_of(layout)
    trainer.scale.value = 2.0**20
    return [one for number in range(3) for one in _seen(trainer.step(number))]


def resumed(rank: int, names: tuple[str, ...], place: Path) -> dict[str, Any]:
    """By case: what each step of a whole run saw, and of one that goes on with it."""
    return {name: _resumed(name, place) for name in names}


def file_bytes(rank: int, name: str, place: Path) -> dict[str, int]:
    from runtime.offload.disk_optimizer import DiskOptimizer

    held = trainer_of(layout_of(name), drive=place).optimizer
    assert isinstance(held, DiskOptimizer)
    return {"size": held.file.size_bytes, "buckets": len(held.file.buckets)}


def _resumed(name: str, place: Path) -> tuple[list[Any], list[Any]]:
    from runtime.checkpoint.checkpoint import load, save

    choice = replace(choice_of("gpt", name), precision="bf16")
    layout = spell_out(choice, job("gpt").graph, BATCH)
    folder = place / name
    drive = place / "drive"
    drive.mkdir(exist_ok=True)
    first = trainer_of(layout, drive=drive)
    whole = [_seen(first.step(number)) for number in range(SAVED)]
    parts = [held.module for held in first.stages]
    save(folder, step=SAVED, parts=parts, optimizer=first.optimizer, meta=META)
    whole += [_seen(first.step(number)) for number in range(SAVED, STEPS)]
    again = trainer_of(layout, SEED + 1, drive)
    parts = [held.module for held in again.stages]
    done = load(folder, parts=parts, optimizer=again.optimizer, meta=META)
    # Dropout and data are of the seed of the run, which goes on.
    again.seed = first.seed
    return whole, [_seen(again.step(number)) for number in range(done, STEPS)]


def _seen(result: Any) -> tuple[float, float]:
    return result.loss, result.gradient_norm
