"""Gradients added up in the file: the same sums, a bucket of them in memory at most."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from costmodel.stages.device_memory import waiting_bytes
from profiles.hardware.catalog import device
from profiles.system.mmap_file import BUCKET_BYTES, PAGE_BYTES
from runtime.offload import disk_optimizer as drive_gradients
from runtime.offload import state_file as disk_states
from runtime.offload.disk_optimizer import DiskOptimizer
from runtime.optim.optimizer import Optimizer, Settings
from runtime.trace.peak_memory import watched
from tests.runtime.ranks import on_ranks
from tests.support.training import trainer_of_case

CPU = torch.device("cpu")
ON_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=ON_CUDA)]
SHAPES = ((40, 60), (7,), (), (60, 40), (0, 3), (1500,))
SMALL = 4096  # bytes of a bucket
FACTOR = 0.25


def weights(device: torch.device = CPU) -> list[tuple[str, nn.Parameter]]:
    torch.manual_seed(1)
    return [
        (f"weight {number}", nn.Parameter(torch.randn(shape).to(device)))
        for number, shape in enumerate(SHAPES)
    ]


def made(micro_batch: int) -> dict[str, Tensor]:
    torch.manual_seed(10 + micro_batch)
    return {name: torch.randn(one.shape) for name, one in weights()}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (disk_states, drive_gradients):
        monkeypatch.setattr(room, "BUCKET_BYTES", SMALL)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_update_is_that_of_sums_in_memory(
    micro_batches: int, device: torch.device, tmp_path: Path
) -> None:
    settings = Settings(lr=0.01)
    here, there = weights(), weights(device)
    ours = Optimizer(here, settings)
    theirs = DiskOptimizer(there, settings, device, tmp_path, gradients=True)
    assert len(theirs.file.buckets) > 2
    down = theirs.take_scattered()
    for step in range(2):
        sums: dict[str, Tensor] = {}
        down.begin()
        for number in range(micro_batches):
            for name, one in reversed(made(step * micro_batches + number).items()):
                down.take(name, one.to(device))
                sums[name] = sums[name] + one if name in sums else one
        found = down.sums()
        for turn in theirs.turns(found):
            for name, one in turn.items():
                assert torch.equal(one, sums[name]), name
        assert [name for turn in theirs.turns(found) for name in turn] == list(found)
        ours.step(sums, FACTOR)
        theirs.step(found, FACTOR)
        for (name, one), (_, two) in zip(here, there, strict=True):
            assert torch.equal(one, two.cpu()), name
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small")
def test_a_change_in_place_stays(tmp_path: Path) -> None:
    held = DiskOptimizer(weights(), Settings(), CPU, tmp_path, gradients=True)
    down, one = held.take_scattered(), made(0)
    for name, gradient in one.items():
        down.take(name, gradient)
    found, names = down.sums(), ["weight 0", "weight 5"]
    moved = (held.file.read_bytes, held.file.written_bytes)
    with down.changing(names):
        for name in names:
            found[name].mul_(2)
    sizes = 4 * sum(one[name].numel() for name in names)
    for before, after in zip(
        moved, (held.file.read_bytes, held.file.written_bytes), strict=True
    ):
        assert sizes <= after - before <= sizes + 4 * PAGE_BYTES
    for turn in held.turns(found):
        for name, gradient in turn.items():
            times = 2 if name in names else 1
            assert torch.equal(gradient, one[name] * times), name


@pytest.mark.usefixtures("small")
def test_what_waits_to_be_written_is_a_bucket_at_most(tmp_path: Path) -> None:
    named = [  # a kilobyte each
        (str(number), nn.Parameter(torch.zeros(16, 16))) for number in range(64)
    ]
    held = DiskOptimizer(named, Settings(), CPU, tmp_path, gradients=True)
    down, made_ = held.take_scattered(), []
    for _ in range(2):
        for name, one in named:
            gradient = torch.ones_like(one)
            made_.append(weakref.ref(gradient))
            down.take(name, gradient)
            del gradient
            assert sum(one() is not None for one in made_) <= SMALL / 1024
    assert all(bool((one == 2).all()) for one in down.sums().values())
    assert not any(one() is not None for one in made_)


@pytest.mark.usefixtures("small")
def test_a_step_forgets_the_gradients_of_the_one_before(tmp_path: Path) -> None:
    held = DiskOptimizer(weights(), Settings(), CPU, tmp_path, gradients=True)
    down = held.take_scattered()
    for number in range(2):
        down.begin()
        for name, one in made(number).items():
            down.take(name, one)
        for name, one in down.sums().items():
            assert torch.equal(one, made(number)[name]), name


def test_the_peak_of_a_rank_lacks_its_states_and_gradients() -> None:
    """Against the same layout with all of them in memory: 16 bytes a parameter; but
    for those that wait to be a bucket, as many as are predicted."""
    (seen,) = on_ranks(1, peaks_of, ("states-away", "states-drive"))
    host, drive, waits = seen
    elements = host["elements"]
    assert elements == drive["elements"] == waits["elements"]
    assert host["peak"] - drive["peak"] >= 0.95 * 16 * elements
    predicted = waiting_bytes(np.asarray(4.0 * elements), device("cpu"))
    assert predicted == 4 * elements, "less than a bucket"
    # With small buckets a layer's wait: they are one tensor as they are scattered.
    more = waits["peak"] - drive["peak"]
    assert 0.98 * (predicted - 4 * drive["layer"]) <= more <= 1.02 * predicted


def peaks_of(rank: int, names: tuple[str, ...]) -> list[dict[str, int]]:
    """Those of *names* with small buckets, and of the last one with those of a run."""
    for room in (disk_states, drive_gradients):
        setattr(room, "BUCKET_BYTES", 16 * SMALL)  # noqa: B010
    found = [_peak_of(name) for name in names]
    setattr(drive_gradients, "BUCKET_BYTES", BUCKET_BYTES)  # noqa: B010
    return [*found, _peak_of(names[-1])]


def _peak_of(name: str) -> dict[str, int]:
    """The most bytes alive in a step."""
    trainer = trainer_of_case(name)
    trainer.step(0)
    trainer.forget()
    with watched(CPU) as peak:
        trainer.step(1)
    elements = sum(leaf.value.numel() for leaf in trainer.optimizer.leaves)
    layer = sum(
        leaf.value.numel()
        for leaf in trainer.optimizer.leaves
        if leaf.name.startswith("layers.0.")
    )
    return {"peak": peak.allocated, "elements": elements, "layer": layer}
