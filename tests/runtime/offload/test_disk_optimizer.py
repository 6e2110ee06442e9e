"""States in a file: the same update, whatever the buckets; nothing is left of it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from profiles.system.mmap_file import PAGE_BYTES
from runtime.offload import state_file as disk_states
from runtime.offload.disk_optimizer import DiskOptimizer
from runtime.offload.state_file import StateFile
from runtime.optim.optimizer import Optimizer, Settings
from runtime.trace.peak_memory import alive_bytes
from tests.runtime.checkpoint_cases import Part, built, restored, same, stored

CPU = torch.device("cpu")


def part(folder: Path | None, name: str, dtype: torch.dtype, seed: int = 0) -> Part:
    """A small model whose optimizer is here, or in a file of *folder*."""
    found = built("plain", seed=seed)
    for module in found.modules:
        module.to(dtype)
    settings = Settings(name=name, lr=0.01)
    found.optimizer = (
        Optimizer(found.named(), settings)
        if folder is None
        else DiskOptimizer(found.named(), settings, CPU, folder)
    )
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["adamw", "adam", "sgd-momentum", "sgd"])
def test_the_update_in_a_file_is_the_same(
    name: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_states, "BUCKET_BYTES", 400)
    here, away = part(None, name, dtype), part(tmp_path, name, dtype)
    assert isinstance(away.optimizer, DiskOptimizer)
    assert len(away.optimizer.file.buckets) > 2
    for number in range(3):
        here.step(number)
        away.step(number)
    assert same(here.whole(), away.whole())
    for (kind, one), (other, two) in zip(here.named(), away.named(), strict=True):
        assert kind == other
        assert torch.equal(one, two)
    assert list(tmp_path.iterdir()) == []


def test_moments_are_in_the_file_after_a_checkpoint_too(tmp_path: Path) -> None:
    files, folder = tmp_path / "files", tmp_path / "checkpoint"
    files.mkdir()
    folder.mkdir()
    first = part(files, "adamw", torch.bfloat16)
    first.step(0)
    stored(folder, first)
    again = restored(folder, part(files, "adamw", torch.bfloat16, seed=5))
    here = restored(folder, part(None, "adamw", torch.bfloat16, seed=6))
    for one in (first, again, here):
        one.step(1)
    assert same(first.whole(), again.whole())
    assert same(first.whole(), here.whole())
    assert isinstance(again.optimizer, DiskOptimizer)
    for number, leaf in enumerate(again.optimizer.leaves):
        state = again.optimizer.inner.state[leaf.value]
        own = (leaf.value, state["exp_avg"], state["exp_avg_sq"])
        there = again.optimizer.file.states(number)
        assert [one.data_ptr() for one in own] == [one.data_ptr() for one in there]


@pytest.mark.parametrize(
    ("name", "states"), [("adamw", 3), ("sgd-momentum", 2), ("sgd", 1)]
)
def test_a_step_reads_and_writes_every_state_once(
    name: str, states: int, tmp_path: Path
) -> None:
    found = part(tmp_path, name, torch.bfloat16)
    assert isinstance(found.optimizer, DiskOptimizer)
    file = found.optimizer.file
    read, written = file.read_bytes, file.written_bytes
    assert (read, written) == (0, file.size_bytes)
    found.step(0)
    moved = (file.read_bytes - read, file.written_bytes - written)
    assert moved == (file.size_bytes, file.size_bytes)
    held = sum(4 * states * one.numel() for _, one in found.named())
    assert held <= file.size_bytes < held + 2 * PAGE_BYTES * len(file.buckets)


def test_what_is_in_the_file_takes_no_memory(tmp_path: Path) -> None:
    gc.collect()
    before = alive_bytes()
    file = StateFile(tmp_path, [torch.Size((1000, 1000))], 2)
    assert alive_bytes() - before < 4 * 1000 * 1000
    assert file.size_bytes >= 3 * 4 * 1000 * 1000


def test_what_was_left_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_states, "BUCKET_BYTES", 100)
    shapes = [torch.Size((3, 5)), torch.Size((7,)), torch.Size(()), torch.Size((0, 2))]
    file = StateFile(tmp_path, shapes, 2)
    assert [bucket.members for bucket in file.buckets] == [(0,), (1, 2, 3)]
    for number in range(len(shapes)):
        for kind, tensor in enumerate(file.states(number)):
            tensor.fill_(10 * number + kind)
    for bucket in file.buckets:
        file.leave(bucket.states)
    file.settle()
    for bucket in file.buckets:
        file.ahead(bucket.states)
    for number, shape in enumerate(shapes):
        for kind, tensor in enumerate(file.states(number)):
            assert torch.equal(tensor, torch.full(shape, 10.0 * number + kind))
    assert list(tmp_path.iterdir()) == []
