"""A table that is the head too, when two pipeline stages hold it.

Both start from the same numbers and take the sum of both gradients, so they stay
equal without ever being sent (Megatron-LM's embedding group).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import Layout
from profiles.models import Job
from runtime.parallel.collectives import Group, all_reduce_from

TABLE = "embedding.table.weight"
HEAD = "head.weight"


class TiedTable:
    """The shared table's gradient on this rank, where it holds a copy, or two.

    Schedules in a V, and those of two model copies, have both ends on one rank: it adds
    the two gradients without a word to anyone.
    """

    def __init__(self, job: Job, layout: Layout, mesh: DeviceMesh) -> None:
        self.group: Group | None = None
        self.copies, self._together = 1, False
        self._device = torch.device(mesh.device_type)
        ends = [layout.stages[place].held_by for place in (0, -1)]
        apart = len(layout.stages) > 1
        if not (apart and getattr(job.spec, "tied_embeddings", False)):
            return
        self.copies = 2
        self._together = set(ends[0]) == set(ends[1])
        if not self._together:
            self.group = _joined(mesh, ends[0][0], ends[1][0])

    @property
    def names(self) -> tuple[str, ...]:
        """Of gradients that `sum` changes."""
        return (TABLE, HEAD) if self.copies > 1 else ()

    def sum(self, stages: Collection[Mapping[str, Tensor]]) -> None:
        """Add the other copy's gradient to this one's, in place; *stages* are the
        gradients of this rank's, by name."""
        here = [
            gradients[name]
            for gradients in stages
            for name in (TABLE, HEAD)
            if name in gradients
        ]
        if self.group is not None:
            for gradient in here:
                all_reduce_from(gradient, self.group, self._device)
        elif self._together and here:
            one, two = here
            two.copy_(one.add_(two))


def _joined(mesh: DeviceMesh, first: int, last: int) -> Group | None:
    """The group of this rank and its peer, where it is of the *first* or the *last*
    pipeline rank; every rank calls this at once."""
    ends = (mesh.mesh.select(0, end).flatten().tolist() for end in (first, last))
    own: Group | None = None
    for pair in zip(*ends, strict=True):
        group = dist.new_group(list(pair))
        if dist.get_rank() in pair:
            own = group
    return own
