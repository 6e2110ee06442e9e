"""What two ranks do while a recorder watches: every kind of parallelism, in small."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from costmodel.schedule.action import Action
from runtime.parallel.collectives import (
    all_reduce,
    start_all_gather,
    start_reduce_scatter,
)
from runtime.trace.recorder import Recorder
from tests.runtime import pipeline_cases
from tests.runtime.pipeline_cases import Watching
from tests.runtime.small_model import ROWS, Case, batch, gradients, held_parts

BLOCKS, WIDTH, BATCH = 2, 8, 4
Document = list[dict[str, Any]]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(
            nn.Sequential(
                nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
            )
            for _ in range(BLOCKS)
        )
    )


class Recomputed(nn.Module):
    """Runs its part again in the backward."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, inputs: Tensor) -> Any:
        return checkpoint(self.part, inputs, use_reentrant=False)


def passes(recorder: Recorder, module: nn.Module, rows: int = BATCH) -> Document:
    """A forward and a backward, recorded, after one of each that is not."""
    inputs = torch.randn(rows, WIDTH, requires_grad=True)
    module(inputs).sum().backward()
    recorder.begin()
    with recorder.observing(Action.parse("0F0")):
        made = module(inputs)
    with recorder.observing(Action.parse("0B0")):
        made.sum().backward()
    return recorder.document()


def split(mesh: Any, module: nn.Sequential, *, sequence: bool) -> nn.Module:
    layout = Shard(0) if sequence else Replicate()
    for block in module:
        plan = {
            "0": ColwiseParallel(input_layouts=layout),
            "2": RowwiseParallel(output_layouts=layout),
        }
        assert isinstance(block, nn.Module)
        parallelize_module(block, mesh, plan)
    return module


def plain(rank: int, recorder: Recorder) -> Document:
    """Collectives called directly, of two axes' groups and another."""
    group, other = dist.group.WORLD, dist.new_group([0, 1])
    assert group is not None
    alone = [dist.new_group([one]) for one in (0, 1)][rank]
    recorder.begin()
    mine, whole = torch.ones(2, 3), torch.ones(4, 3, dtype=torch.bfloat16)
    with recorder.observing(Action.parse("0STEP")):
        all_reduce(mine, group)
        all_reduce(mine, group)
        all_reduce(mine, other)
        all_reduce(mine, alone)
        start_all_gather(mine, group, dim=0).wait()
        start_reduce_scatter(whole, group, dim=0).wait()
        dist.all_to_all_single(torch.empty(4, 3), torch.ones(4, 3), group=group)
        dist.broadcast(mine, 0, group=group)
        dist.all_gather([torch.empty(2, 3) for _ in range(2)], mine, group=group)
        sent = dist.isend(mine, 1 - rank, group=group)
        received = dist.irecv(torch.empty(2, 3), 1 - rank, group=group)
        assert sent is not None
        assert received is not None
        received.wait()
        sent.wait()
        dist.barrier(group=group)
    return recorder.document()


def watched(rank: int) -> dict[str, Document]:
    """Everything above; no warning comes from the recorder."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    group = dist.group.WORLD
    assert group is not None
    tp, dp = Recorder({"tp": mesh.get_group()}), Recorder({"dp": mesh.get_group()})
    replicated = DistributedDataParallel(model())
    found = {"plain": plain(rank, Recorder({"dp": group}))}
    passes(dp, replicated)  # the reducer sorts its buckets anew after the first step
    found["ddp"] = passes(dp, replicated)
    for gathered in (False, True):
        sharded = model()
        for block in sharded:
            fully_shard(block, mesh=mesh, reshard_after_forward=gathered)
        fully_shard(sharded, mesh=mesh, reshard_after_forward=gathered)
        found[f"fsdp {gathered}"] = passes(dp, sharded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found["tp"] = passes(tp, split(mesh, model(), sequence=False))
        recomputed = Recomputed(split(mesh, model(), sequence=False))
        found["tp recomputed"] = passes(tp, recomputed)
    found["tp sequence"] = passes(tp, split(mesh, model(), sequence=True), BATCH // 2)
    return found


GRID = Case("1f1b", 2, 1, 4)


class Summing(Watching):
    """REDUCE_GRAD sums over replicas."""

    def __init__(self, group: dist.ProcessGroup, parts: Any) -> None:
        super().__init__()
        self.group, self.parts = group, parts

    def reduce(self, stage: int) -> None:
        for parameter in self.parts[stage].parameters():
            all_reduce(parameter.grad, self.group)
            parameter.grad /= self.group.size()


def grid(rank: int) -> dict[str, Any]:
    """Two replicas of a pipeline of two; each replica takes half of the batch."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    across = mesh["dp"].get_group()
    group = mesh["pp"].get_group()
    parts = held_parts(GRID, group.rank())
    recorder = Recorder({"pp": group, "dp": across})
    hooks = Summing(across, parts)
    runner = pipeline_cases.executor(GRID, group, parts, hooks, recorder)
    tokens, targets = (
        side.chunk(2)[across.rank()].split(ROWS)
        for side in batch(2 * GRID.micro_batches)
    )
    runner.step(tokens, targets)
    return {
        "gradients": gradients(list(parts.values())),
        "recorded": recorder.document(),
    }
