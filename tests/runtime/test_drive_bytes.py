"""What a step reads from a drive and writes to it, by action, is what is priced."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from costmodel.machine import machine
from costmodel.offload_price import shard_bytes, state_bytes
from costmodel.uniform import spell_out
from profiles.catalog import DEFAULT_CLUSTER, cluster
from profiles.drive import PAGE_BYTES
from tests.runtime.ranks import on_ranks
from tests.training import SEED
from tests.training_cases import BATCH, choice_of, job

ON = machine(cluster(DEFAULT_CLUSTER))  # under this project's own software
EDGES = 2 * PAGE_BYTES  # of a part that begins and ends within pages


@pytest.mark.parametrize(
    ("world", "cases"),
    [
        (1, ("drive", "states-drive")),
        (2, ("zero1-drive", "zero2-drive", "fsdp2-drive", "fsdp2-states-drive")),
    ],
)
def test_each_action_moves_what_is_priced(world: int, cases: tuple[str, ...]) -> None:
    for ranks in on_ranks(world, moved, cases):
        for name, seen in ranks.items():
            _require_priced(name, seen)


def _require_priced(name: str, seen: dict[str, Any]) -> None:
    choice, asked = choice_of("gpt", name), job("gpt")
    layout = spell_out(choice, asked.graph, BATCH)
    states = seen["elements"] * state_bytes(layout.precision, asked.moments)
    shards = seen["elements"] * shard_bytes(layout.precision, ON)
    gradients = seen["elements"] * layout.precision.gradient.bytes
    m, edges = layout.micro_batches, EDGES * seen["parameters"]
    scattered = choice.offload.parameters or choice.dp > 1
    sent = (m if choice.zero >= 2 else 1) if scattered else 0
    passes = sum(size for kind, size in seen["read"].items() if kind != "STEP")
    before = sum(size for kind, size in seen["written"].items() if kind != "STEP")
    step, pages = seen["read"]["STEP"], EDGES * seen["buckets"]
    assert states <= seen["written"]["STEP"] <= states + pages, name
    # Gradients for their norm, and beside the states that they update.
    assert step >= states + 2 * gradients * scattered, name
    assert step <= states + pages + 2 * (gradients + pages) * scattered, name
    # Every micro-batch writes what it scatters; all but the first read it to add.
    assert sent * gradients <= before <= sent * (gradients + edges), name
    added = max(sent - 1, 0)
    least, most = added * gradients, added * (gradients + edges)
    if choice.offload.parameters:  # for the forward and the backward of each
        least, most = least + 2 * m * shards, most + 2 * m * (shards + edges)
        assert seen["in_file"], name
    elif choice.zero in (1, 2) and choice.dp > 1:  # once a step, in the first forward
        least, most = least + shards, most + shards + edges
        assert shards <= seen["read"]["F0"] <= shards + edges, name
        assert not {"F"} & set(seen["read"]), name
        assert seen["in_file"], name
    # Else the masters are copies, and the weights come from their update.
    assert least <= passes <= most, name


def moved(rank: int, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return {name: _moved(name) for name in names}


def _moved(name: str) -> dict[str, Any]:
    """Bytes of the second step by kind of action; a forward's also by micro-batch."""
    import torch

    from runtime.data.source import source
    from runtime.disk_optimizer import DiskOptimizer
    from runtime.optimizer import Settings, local
    from runtime.trainer import Trainer

    asked = job("gpt")
    layout = spell_out(choice_of("gpt", name), asked.graph, BATCH)
    trainer = Trainer(
        asked,
        layout,
        source("synthetic", vocab=512, seq_len=asked.seq_len, seed=1),
        settings=Settings(),
        seed=SEED,
        device=torch.device("cpu"),
    )
    assert isinstance(trainer.optimizer, DiskOptimizer)
    file, leaves = trainer.optimizer.file, trainer.optimizer.leaves
    trainer.step(0)
    marks: list[tuple[str, int, int]] = []

    def told(action: Any) -> None:
        first = str(action).endswith("F0")
        kind = "F0" if first else action.kind.name
        marks.append((kind, file.read_bytes, file.written_bytes))

    trainer.watch(told)
    trainer.step(1)
    marks.append(("end", file.read_bytes, file.written_bytes))
    read: Counter[str] = Counter()
    written: Counter[str] = Counter()
    for (kind, *before), (_, *after) in pairwise(marks):
        read[kind] += after[0] - before[0]
        written[kind] += after[1] - before[1]
    return {
        "read": {kind: size for kind, size in read.items() if size},
        "written": {kind: size for kind, size in written.items() if size},
        "elements": sum(leaf.value.numel() for leaf in leaves),
        "parameters": len(leaves),
        "buckets": len(file.buckets),
        "in_file": all(
            local(leaf.parameter).data_ptr() == file.states(number)[0].data_ptr()
            for number, leaf in enumerate(leaves)
        ),
    }
