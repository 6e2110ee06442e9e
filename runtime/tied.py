"""A table that is the head too, when two pipeline stages hold it.

Both start from the same numbers and take the sum of both gradients, so they stay
equal without ever being sent (Megatron-LM's embedding group).
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import Layout
from profiles.errors import Unsupported
from profiles.job import Job
from runtime.collectives import Group, all_reduce

TABLE = "embedding.table.weight"
HEAD = "head.weight"


class TiedTable:
    """The gradient of the shared table on this rank, if it holds one of two copies."""

    def __init__(self, job: Job, layout: Layout, mesh: DeviceMesh) -> None:
        self.group: Group | None = None
        first, last = layout.stages[0].held_by[0], layout.stages[-1].held_by[0]
        apart = len(layout.stages) > 1
        if not (apart and getattr(job.spec, "tied_embeddings", False)):
            self.copies = 1
            return
        if first == last:
            raise Unsupported(
                "a tied table in two stages of one rank is not carried out; choose "
                "another schedule"
            )
        self.copies = 2
        ends = mesh.mesh.select(0, first), mesh.mesh.select(0, last)
        for one, two in zip(
            ends[0].flatten().tolist(), ends[1].flatten().tolist(), strict=True
        ):
            group = dist.new_group([one, two])
            if dist.get_rank() in (one, two):
                self.group = group

    def sum(self, gradients: dict[str, Tensor]) -> None:
        """Add the other copy's gradient to this one's, in place."""
        for name in (TABLE, HEAD):
            if self.group is not None and name in gradients:
                all_reduce(gradients[name], self.group)
