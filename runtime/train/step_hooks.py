"""What the actions of a stream mean beside the passes: reduction and the update.

forward      in the precision's context
backward     the last one of a stage lets its gradients travel
REDUCE_GRAD  wait for them; sum what tensor parallelism left partial
STEP         tied copies, the global norm, clipping, the optimizer; with a scaled
             loss nothing where gradients overflow

The two holders of a stage that has two need not come to its REDUCE_GRAD in one order
with their other passes: they wait for each other in STEP.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from math import isfinite
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import Layout
from costmodel.schedule import Kind
from profiles.models import Job
from runtime.models import Policy
from runtime.optim import (
    LossScale,
    Optimizer,
    Piece,
    clip_factor,
    global_norm,
    loss_scale,
    parts,
)
from runtime.parallel import (
    all_reduce_from,
    own_group,
    partial_parameters,
    sum_together,
)
from runtime.train.build import LocalStage

TABLE = "embedding.table.weight"
HEAD = "head.weight"


class Tied(Protocol):
    """Parameters that several stages hold, each a copy of."""

    group: dist.ProcessGroup | None

    @property
    def names(self) -> Collection[str]:
        """Of gradients that `sum` changes."""

    def copies_of(self, name: str) -> int:
        """How many stages hold the parameter called *name*."""

    def sum(self, stages: Collection[Mapping[str, Tensor]]) -> None:
        """Give every copy the sum of all gradients, in place; *stages* are the
        gradients of this rank's, by name."""


class TiedTable:
    """The gradient of a table that is the head too, where this rank holds one of two
    copies of it, or both.

    Two pipeline stages hold it: both start from the same numbers and take the sum of
    both gradients, so they stay equal without ever being sent (Megatron-LM's embedding
    group). Schedules in a V, and those of two model copies, have both ends on one rank,
    which adds the two gradients without a word to anyone.
    """

    def __init__(self, job: Job, layout: Layout, mesh: DeviceMesh) -> None:
        self.group: dist.ProcessGroup | None = None
        self.copies, self._together = 1, False
        self._device = torch.device(mesh.device_type)
        ends = [layout.stages[place].held_by for place in (0, -1)]
        apart = len(layout.stages) > 1
        if not (apart and getattr(job.spec, "tied_embeddings", False)):
            return
        self.copies = 2
        self._together = set(ends[0]) == set(ends[1])
        if not self._together:
            pairs = (mesh.mesh.select(0, one).flatten().tolist() for one, *_ in ends)
            self.group = own_group(list(pair) for pair in zip(*pairs, strict=True))

    @property
    def names(self) -> tuple[str, ...]:
        """Of gradients that `sum` changes."""
        return (TABLE, HEAD) if self.copies > 1 else ()

    def copies_of(self, name: str) -> int:
        """How many stages hold the parameter called *name*."""
        return self.copies if name in (TABLE, HEAD) else 1

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


class Step:
    """The hooks of one rank's executor; `begin` before each step."""

    def __init__(
        self,
        stages: Sequence[LocalStage],
        optimizer: Optimizer,
        tied: Tied,
        mesh: DeviceMesh,
        rules: Policy,
    ) -> None:
        self.stages = {stage.index: stage for stage in stages}
        self.optimizer, self.tied, self.mesh = optimizer, tied, mesh
        self.rules, self.scale = rules, loss_scale(rules.scaled)
        self.norm = 0.0
        self.saving: Callable[[], AbstractContextManager[None]] = nullcontext
        self._factor = 1.0  # what the update multiplies gradients by
        self._before: LossScale | None = None  # the update of a step under way
        self._counts = True  # that update
        self._ranks = mesh["dp"].size() * mesh["tp"].size()  # slicing a mesh is slow
        self._device = torch.device(mesh.device_type)
        self._gradients: dict[int, dict[str, Tensor]] = {}
        self._partial = {stage.index: self._partial_of(stage) for stage in stages}
        self._copies = {
            name: self._copies_of(name, parameter, stage)
            for stage in stages
            for name, parameter in stage.named_parameters()
        }

    def begin(self) -> None:
        """Forget the step before."""
        self._gradients = {}
        for stage in self.stages.values():
            stage.parallel.begin()

    @contextmanager
    def forward(self, stage: int) -> Iterator[None]:
        """Around a stage's forward."""
        with self.rules.computing(self.mesh.device_type), self.saving():
            yield

    def backward(
        self, stage: int, kind: Kind, last: bool
    ) -> AbstractContextManager[object]:
        """Around a stage's backward."""
        return self.stages[stage].parallel.backward(kind, last=last)

    def reduce(self, stage: int) -> None:
        """REDUCE_GRAD: the gradients of a stage with one holder are whole."""
        if self.stages[stage].copies == 1:
            self._finish(stage)

    def _finish(self, stage: int) -> None:
        held = self.stages[stage]
        held.parallel.finish()
        gradients = dict(held.parallel.gradients())
        partial = self._partial[stage]
        with held.parallel.changing(partial):
            # One all-reduce over tp for all that is partial there.
            parts = [gradients[name] for name in partial]
            sum_together(parts, self.mesh["tp"].get_group(), self._device)
        self._gradients[stage] = gradients

    def step(self) -> None:
        """STEP: update every stage of this rank."""
        made = self.summed()
        norm = global_norm(map(self._pieces, self.optimizer.turns(made)))
        self.norm = float(norm) / self.scale.value
        clipped = clip_factor(self.norm, self.optimizer.settings.clip)
        self._factor = clipped / self.scale.value
        self._before = replace(self.scale)
        self._counts = self.scale.judge(finite=isfinite(self.norm))
        if self._counts:
            self.optimizer.step(made, self._factor)

    def summed(self) -> dict[str, Tensor]:
        """This rank's part of every gradient, when all have come."""
        for stage in self.stages:
            if stage not in self._gradients:
                self._finish(stage)
        self._sum_tied()
        return self._made()

    def squares(self, some: Mapping[str, Tensor]) -> float:
        """The sum of squares over all ranks, of what has a parameter's shape and name
        each."""
        return float(global_norm([self._pieces(some)], device=self._device)) ** 2

    def done(self) -> None:
        """The step has ended on every rank: its update stays."""
        self._before = None

    @property
    def updated(self) -> bool:
        """Whether all of this rank's update is made, in a step that has not ended."""
        return self._before is not None and not self.optimizer.interrupted

    def undo(self) -> None:
        """Take back what a step that has not ended has updated."""
        if self._before is None:
            return
        if self._counts:
            self.optimizer.undo(self._made())
        self.scale.value = self._before.value
        self.scale.good_steps = self._before.good_steps
        self._before = None

    def gradients(self) -> dict[str, Tensor]:
        """This rank's part of every gradient, by the parameter's name, as the update
        took it."""
        made = self._made()
        if self.optimizer.scales:
            return made
        return {name: gradient * self._factor for name, gradient in made.items()}

    def _made(self) -> dict[str, Tensor]:
        return {
            name: gradient
            for gradients in self._gradients.values()
            for name, gradient in gradients.items()
        }

    def _pieces(self, some: Mapping[str, Tensor]) -> Iterator[Piece]:
        for name, gradient in some.items():
            yield Piece(gradient, self._copies[name])

    def _copies_of(self, name: str, parameter: Tensor, held: LocalStage) -> int:
        """Ranks of the job that hold the same part of a parameter."""
        copies = self._ranks // parts(parameter) * held.copies
        return copies * self.tied.copies_of(name)

    def _sum_tied(self) -> None:
        with ExitStack() as changed:
            for stage, made in self._gradients.items():
                names = [name for name in self.tied.names if name in made]
                changed.enter_context(self.stages[stage].parallel.changing(names))
            self.tied.sum(self._gradients.values())

    def _partial_of(self, held: LocalStage) -> list[str]:
        if self.mesh["tp"].size() == 1:
            return []
        return [
            name
            for name, _ in partial_parameters(
                held.module, sequence_parallel=held.sequence_parallel
            )
        ]
