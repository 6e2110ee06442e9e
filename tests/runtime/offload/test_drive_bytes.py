"""What a step reads from a drive and writes to it, by action, is what is priced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import pytest

from costmodel.layout.layout import Layout
from costmodel.layout.strategy import spell_out
from costmodel.machine.assembly import machine
from costmodel.stages.layout_cost import LayoutPricer
from costmodel.stages.offload_cost import shard_bytes, state_bytes
from profiles.hardware.catalog import DEFAULT_CLUSTER, cluster
from profiles.models.job import Job
from profiles.system.mmap_file import PAGE_BYTES
from tests.runtime.ranks import on_ranks
from tests.support.training import trainer_of
from tests.support.training_cases import BATCH, choice_of, job

ON = machine(cluster(DEFAULT_CLUSTER))  # under this project's own software
EDGES = 2 * PAGE_BYTES  # of a part that begins and ends within pages


# Over tp, over the ends of the pipeline, over holders, over replicas of shards.
SUMMED_AWAY = (
    "fsdp2-tp2-states-drive",
    "fsdp2-pp2-states-drive",
    "zero2-chimera-drive",
    "zero1-chimera-drive",
    "hybrid-zero2-drive",
)


@pytest.mark.parametrize(
    ("world", "cases"),
    [
        (1, ("drive", "states-drive")),
        (2, ("zero1-drive", "zero2-drive", "fsdp2-drive", "fsdp2-states-drive")),
        (2, ("fsdp2-sqrt-states-drive",)),
        (4, SUMMED_AWAY),
    ],
)
def test_each_action_moves_what_is_priced(world: int, cases: tuple[str, ...]) -> None:
    for number, ranks in enumerate(on_ranks(world, moved, cases)):
        for name, seen in ranks.items():
            _require_priced(name, number, seen)


def _require_priced(name: str, rank: int, seen: dict[str, Any]) -> None:
    choice, asked = choice_of("gpt", name), job("gpt")
    layout = spell_out(choice, asked.graph, BATCH)
    states = seen["elements"] * state_bytes(layout.precision, asked.moments)
    shards = seen["elements"] * shard_bytes(layout.precision, ON)
    gradients = seen["elements"] * layout.precision.gradient.bytes
    summed = summed_away_bytes(asked, layout, rank)
    m = layout.micro_batches // len(layout.stages[0].held_by)
    edges = EDGES * seen["parameters"]
    scattered = choice.offload.parameters or choice.dp > 1
    sent = (m if choice.zero >= 2 else 1) if scattered else 0
    passes = sum(size for kind, size in seen["read"].items() if kind != "STEP")
    before = sum(size for kind, size in seen["written"].items() if kind != "STEP")
    step, pages = seen["read"]["STEP"], EDGES * seen["buckets"]
    # What is summed where it lies comes and goes once more, by whole pages.
    assert seen["changed"] == summed, name
    around = 2 * edges if summed else 0
    written = seen["written"]["STEP"]
    # Two holders come to their last gradients in STEP.
    late = len(layout.stages[0].held_by) > 1
    most = states + summed + pages + around + late * (gradients + edges)
    assert states <= written <= most, name
    # Gradients for their norm, and beside the states that they update.
    assert step >= states + 2 * gradients * scattered, name
    most = states + pages + 2 * (gradients + pages) * scattered
    assert step <= most + summed + around, name
    both = sent * gradients + states + summed
    assert both <= before + written, name
    # Every micro-batch writes what it scatters; all but the first read it to add.
    most = sent * (gradients + edges) + summed + around
    assert (sent - late) * gradients <= before <= most, name
    added = max(sent - 1, 0)
    least, most = added * gradients, added * (gradients + edges)
    if choice.offload.parameters:  # for the forward and the backward of each
        least, most = least + 2 * m * shards, most + 2 * m * (shards + edges)
        assert seen["in_file"], name
    elif choice.zero in (1, 2) and choice.dp > 1:  # once a step, in the first forward
        least, most = least + shards, most + shards + edges
        assert seen["in_file"], name
        if choice.pp == 1:
            assert shards <= seen["read"]["F0"] <= shards + edges, name
            assert not {"F"} & set(seen["read"]), name
    # Else the masters are copies, and the weights come from their update.
    assert least <= passes <= most + summed + around, name


def summed_away_bytes(asked: Job, layout: Layout, rank: int) -> float:
    """What is priced for a rank, of all stages that it holds."""
    stages = LayoutPricer(job=asked, layout=layout, machine=ON).stages()
    return sum(
        float(price.summed_away_bytes)
        for price, stage in zip(stages, layout.stages, strict=True)
        if rank // (layout.gpus // layout.pp) in stage.held_by
    )


def moved(rank: int, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return {name: _moved(name) for name in names}


def _moved(name: str) -> dict[str, Any]:
    """Bytes of the second step by kind of action; a forward's also by micro-batch."""

    from runtime.offload.disk_optimizer import DiskOptimizer, DriveGradients
    from runtime.optim.optimizer import local

    layout = spell_out(choice_of("gpt", name), job("gpt").graph, BATCH)
    trainer = trainer_of(layout)
    assert isinstance(trainer.optimizer, DiskOptimizer)
    file, leaves = trainer.optimizer.file, trainer.optimizer.leaves
    trainer.step(0)
    marks: list[tuple[str, int, int]] = []

    def told(action: Any) -> None:
        first = str(action).endswith("F0")
        kind = "F0" if first else action.kind.name
        marks.append((kind, file.read_bytes, file.written_bytes))

    trainer.watch(told)
    changed = []
    changing = DriveGradients.changing

    def counted(self: DriveGradients, names: Collection[str]) -> Any:
        own = dict(self.sums())
        changed.append(sum(own[name].nbytes for name in names))
        return changing(self, names)

    DriveGradients.changing = counted  # type: ignore[method-assign]
    trainer.step(1)
    DriveGradients.changing = changing  # type: ignore[method-assign]
    marks.append(("end", file.read_bytes, file.written_bytes))
    read: Counter[str] = Counter()
    written: Counter[str] = Counter()
    for (kind, *before), (_, *after) in pairwise(marks):
        read[kind] += after[0] - before[0]
        written[kind] += after[1] - before[1]
    return {
        "read": +read,
        "written": +written,
        "changed": sum(changed),
        "elements": sum(leaf.value.numel() for leaf in leaves),
        "parameters": len(leaves),
        "buckets": len(file.buckets),
        "in_file": all(
            local(leaf.parameter).data_ptr() == file.states(number)[0].data_ptr()
            for number, leaf in enumerate(leaves)
        ),
    }
