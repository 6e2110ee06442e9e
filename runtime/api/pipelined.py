"""`Pipelined`: this rank's stages of a chain, and the step that trains them together.

    model = runtime.parallelize(module, layout, units=…, loss=…)
    loss = model.step(inputs, targets)     # gradients are in .grad, as after backward
    optimizer.step()

The stream of actions is the one that is priced, carried out by the same `Executor` as
the trainer's. Parameters are named `units.<place>.<name>`, on whichever rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import Layout
from costmodel.schedule import Kind
from profiles.errors import Contradiction, Unsupported
from runtime.api.dry_run import DryRun, agreed_shapes
from runtime.api.module_chain import cut
from runtime.api.supported import fsdp_level, state_offload
from runtime.models import Policy
from runtime.offload import StateOffload
from runtime.optim import local
from runtime.parallel import Sharded, Sharding, shard_mesh, sum_together
from runtime.pipeline import Executor, Links, PipelineStage
from runtime.train import rank_stream

Loss = Callable[[Tensor, Tensor], Tensor]


class Part(nn.Module):
    """The units of one stage; the last stage gives the loss."""

    def __init__(self, units: Iterable[nn.Module], loss: Loss | None) -> None:
        super().__init__()
        self.chain = nn.ModuleList(units)
        self._loss = loss

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        for unit in self.chain:
            inputs = unit(inputs)
        if self._loss is None or targets is None:
            return inputs
        return self._loss(inputs, targets)


class Replicated:
    """Gradients in `.grad`, averaged over the ranks of *mesh* after the last one."""

    def __init__(self, part: nn.Module, mesh: DeviceMesh) -> None:
        self._part, self._mesh = part, mesh

    def begin(self) -> None:
        """Forget the step before."""
        self._part.zero_grad()

    def backward(self, kind: Kind, *, last: bool) -> AbstractContextManager[object]:
        """Autograd adds each micro-batch's to `.grad`."""
        return nullcontext()

    @torch.no_grad()
    def finish(self) -> None:
        """One all-reduce of all gradients together, and of which there are: what only
        other ranks' batches used has a gradient here, too; what none used has none."""
        trained = [one for one in self._part.parameters() if one.requires_grad]
        if self._mesh.size() == 1 or not trained:
            return
        used = torch.tensor([one.grad is not None for one in trained])
        for one in trained:
            if one.grad is None:
                one.grad = torch.zeros_like(one)
        parts = [local(one.grad) for one in trained if one.grad is not None]
        device, mean_over = parts[0].device, self._mesh.size()
        told = used.to(device=device, dtype=parts[0].dtype)
        group = self._mesh.get_group()
        sum_together([*parts, told], group, device, mean_over=mean_over)
        for one, by in zip(trained, told.tolist(), strict=True):
            if not by:
                one.grad = None


class Pipelined(nn.Module):
    """Built by every rank at once; `step` is called by every rank at once.

    *trial* says before the first step what stages hand on, and that it is all.
    """

    def __init__(
        self,
        units: Sequence[nn.Module],
        layout: Layout,
        mesh: DeviceMesh,
        loss: Loss,
        rules: Policy,
        *,
        trial: DryRun,
    ) -> None:
        super().__init__()
        self.layout, self._mesh, self._rules = layout, mesh, rules
        self._rank = mesh["pp"].get_local_rank()
        self._shards = shard_mesh(layout, mesh)
        self._trial: DryRun | None = trial
        self._cut = cut(units, layout)
        last = len(layout.stages) - 1
        parts = {
            stage: Part([units[one] for one in places], loss if stage == last else None)
            for stage, places in enumerate(self._cut)
            if self._rank in layout.stages[stage].held_by
        }
        self._parallel = {stage: self._replicas(part) for stage, part in parts.items()}
        self._parts = parts  # a plain dictionary: `units` names their parameters
        self.units = nn.ModuleDict(
            {str(one): units[one] for stage in parts for one in self._cut[stage]}
        )
        self._links = Links(
            mesh["pp"].get_group(), [s.held_by[0] for s in layout.stages]
        )
        self._executor: Executor | None = None

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Forward and backward of this data-parallel rank's batch; the mean loss.

        *inputs* and *targets* have the same first dimension, that of the batch, on
        every rank of a pipeline; the loss is over all ranks' batches.
        """
        count = self.layout.micro_batches
        if len(inputs) % count or len(inputs) != len(targets):
            raise Contradiction(
                f"a batch of {len(inputs)} with {len(targets)} targets does not split "
                f"into the layout's {count} micro-batches"
            )
        tokens, wanted = inputs.chunk(count), targets.chunk(count)
        if self._executor is None:
            self._executor = self._built(tokens[0])
        for parallel in self._parallel.values():
            parallel.begin()
        losses = self._executor.step(tokens, wanted)
        total = torch.zeros((), device=inputs.device)
        if losses:
            total += torch.stack([loss.float() for loss in losses]).sum() / count
        dist.all_reduce(total)
        return total / (self._mesh["dp"].size() * self._mesh["tp"].size())

    @property
    def parts(self) -> dict[int, Part]:
        """What this rank has of each stage that it holds."""
        return self._parts

    def forward(self, *given: Tensor) -> Tensor:
        """Refused: a stage alone has no loss."""
        raise Unsupported("a pipelined module is trained by step(inputs, targets)")

    def _replicas(self, part: Part) -> Sharded | Replicated:
        across, zero = self._mesh["dp"], fsdp_level(self.layout)
        first = next(part.parameters(), None)
        if not zero or first is None:  # a stage may have nothing to train
            return Replicated(part, across)
        device, away = first.device, state_offload(self.layout)
        how = Sharding(
            zero=zero,
            policy=self._rules,
            device=device,
            # Masters are the loop's optimizer's.
            away=StateOffload(shards=away.shards, on_drive=away.on_drive),
        )
        return Sharded(part, list(part.chain), self._shards, how)

    def _built(self, micro_batch: Tensor) -> Executor:
        assert self._trial is not None, "the executor is built once"
        made = agreed_shapes(self._trial, micro_batch)
        self._trial = None
        between = {tuple(made[places[-1]]) for places in self._cut[:-1]}
        if len(between) > 1:
            raise Unsupported(
                f"stages hand on tensors of unlike shapes {sorted(between)}; cut where "
                "they are alike"
            )
        (boundary,) = between
        device = micro_batch.device
        stages = {
            number: PipelineStage(
                index=number,
                module=part,
                first=number == 0,
                last=number == len(self._cut) - 1,
                boundary=boundary,
                dtype=self._rules.activation,
                device=device,
            )
            for number, part in self._parts.items()
        }
        return Executor(
            stream=rank_stream(self.layout, self._rank),
            stages=stages,
            links=self._links,
            micro_batches=self.layout.micro_batches,
            hooks=_Hooks(self),
        )


class _Hooks:
    """What the executor's stream means here; the update is the user's own."""

    def __init__(self, model: Pipelined) -> None:
        self._model = model

    def forward(self, stage: int) -> AbstractContextManager[object]:
        return self._model._rules.computing(self._model._mesh.device_type)

    def backward(
        self, stage: int, kind: Kind, last: bool
    ) -> AbstractContextManager[object]:
        return self._model._parallel[stage].backward(kind, last=last)

    def reduce(self, stage: int) -> None:
        self._model._parallel[stage].finish()

    def step(self) -> None:
        """Nothing: `optimizer.step()` follows in the user's loop."""
