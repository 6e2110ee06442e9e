"""Saved tensors on a drive: they come back as they were, their places are used again,
and what a step moves is what is priced."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from costmodel.layout.strategy import spell_out
from costmodel.machine.assembly import machine
from costmodel.stages.layout_cost import LayoutPricer
from profiles.hardware.catalog import DEFAULT_CLUSTER, cluster
from profiles.system.mmap_file import BUCKET_BYTES, PAGE_BYTES
from runtime.offload.activations import OnDrive, Scratch, Tiers
from runtime.offload.host import Host
from tests.runtime.ranks import on_ranks
from tests.support.training import trainer_of_case
from tests.support.training_cases import BATCH, choice_of, job

CPU = torch.device("cpu")
ON_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=ON_CUDA)]
ON = machine(cluster(DEFAULT_CLUSTER))  # under this project's own software


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64])
def test_a_tensor_comes_back_as_it_was(
    kind: torch.dtype, device: torch.device, tmp_path: Path
) -> None:
    tiers = Tiers(device, tmp_path)
    made = [torch.arange(size).to(device, kind) for size in (1, 700, 5000)]
    away = [tiers.away(one, "nvme") for one in made]
    tiers.sent()
    for one in reversed(away):
        one.start()
    for tensor, there in zip(made, away, strict=True):
        assert torch.equal(there.back(), tensor)
    assert list(tmp_path.iterdir()) == []


def test_places_are_used_again_and_neighbours_joined(tmp_path: Path) -> None:
    scratch = Tiers(CPU, tmp_path).scratch
    pages = BUCKET_BYTES // PAGE_BYTES // 2
    half = torch.zeros(pages * PAGE_BYTES, dtype=torch.uint8)
    for _ in range(3):
        kept = [scratch.put(half) for _ in range(2)]
        assert len(scratch.slabs) == 1
        del kept[0]
        kept.append(scratch.put(half))
        assert len(scratch.slabs) == 1
        kept.clear()
    whole = scratch.put(torch.ones(BUCKET_BYTES, dtype=torch.uint8))
    assert len(scratch.slabs) == 1
    larger = scratch.put(torch.ones(BUCKET_BYTES + 1, dtype=torch.uint8))
    assert len(scratch.slabs) == 2
    assert bool(whole.back().all())
    assert len(larger.back()) == BUCKET_BYTES + 1


@pytest.mark.parametrize("name", ["saved-drive", "pp2-zb-h1-saved-drive"])
def test_a_step_moves_what_is_priced(name: str) -> None:
    choice, asked = choice_of("gpt", name), job("gpt")
    layout = spell_out(choice, asked.graph, BATCH)
    stages = LayoutPricer(job=asked, layout=layout, machine=ON).stages()
    for seen, stage in zip(on_ranks(choice.gpus, moved, name), stages, strict=True):
        priced = layout.micro_batches * float(stage.away_bytes)
        edges = PAGE_BYTES * seen["tensors"]
        # Statistics that attention keeps for itself stay where they are.
        assert 0.99 * priced <= seen["written"] <= priced + edges
        assert seen["read"] == seen["written"]


def moved(rank: int, name: str) -> dict[str, int]:
    """Bytes that the second step of a rank writes and reads, of how many tensors."""
    from runtime.offload import activations as tiers

    known: list[Seen] = []

    class Seen(Scratch):
        """Counts what it is given."""

        def __init__(self, folder: Path, host: Host) -> None:
            super().__init__(folder, host)
            self.tensors = 0
            known.append(self)

        def put(self, flat: Tensor) -> OnDrive:
            self.tensors += 1
            return super().put(flat)

    tiers.Scratch = Seen  # type: ignore[misc]
    trainer = trainer_of_case(name)
    (scratch,) = known
    trainer.step(0)
    files = [slab.file for slab in scratch.slabs]
    before = [(file.read_bytes, file.written_bytes) for file in files]
    scratch.tensors = 0
    trainer.step(1)
    assert [slab.file for slab in scratch.slabs] == files
    read = sum(file.read_bytes for file in files) - sum(one for one, _ in before)
    written = sum(file.written_bytes for file in files) - sum(two for _, two in before)
    return {"read": read, "written": written, "tensors": scratch.tensors}
