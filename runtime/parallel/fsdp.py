"""ZeRO of a stage whose backward is split: gradients are whole when W is done.

`fully_shard` ends a backward after I, before W has added the gradients of weights.

AfterW        zero 1: it is let reduce nothing until all W are done
AfterEachW    zero 2, 3: it is let reduce nothing in an I but what has no product (the
              table); each W scatters the others, unit by unit as they become whole.
              Where shards have replicas, W scatters the table too: the last W is known,
              which sums over them

What I makes of a unit's gradients (norms) waits for W, in which the unit is scattered
with as many bytes as in a whole backward. I gathers the weights (zero 3); W has no use
for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from costmodel.schedule import Kind
from runtime.models import Deferred, Embedding
from runtime.parallel.collectives import exchanged
from runtime.parallel.data_parallel import Sharded, Sharding, Unit


class AfterW(Sharded):
    """ZeRO-1: gradients scattered when all are in.

    As PyTorch's own pipelines do it (`torch.distributed.pipelining.stage`), who run
    `fully_shard`'s end of a backward by hand.
    """

    def backward(self, kind: Kind, *, last: bool) -> AbstractContextManager[object]:
        self._ends_here(False)
        for group in self.groups():  # what the pass before left, to 32 bits
            for parameter in group.fsdp_params:
                if hasattr(parameter, "_unsharded_param"):
                    _in_32_bits(parameter)
        return nullcontext()

    def finish(self) -> None:
        self._ends_here(True)
        for group in self.groups():
            group.post_backward()
        self._root._get_fsdp_state()._root_post_backward_final_callback()
        super().finish()

    def _ends_here(self, yes: bool) -> None:
        self._root.set_is_last_backward(yes)
        self._root.set_requires_gradient_sync(yes)
        self._root.set_reshard_after_backward(yes)


class AfterEachW(Sharded):
    """ZeRO-2 and 3: gradients scattered in each W, and in each whole backward."""

    def __init__(
        self,
        stage: nn.Module,
        units: Sequence[Unit],
        mesh: DeviceMesh,
        how: Sharding,
        experts: DeviceMesh | None = None,
        *,
        later: Deferred,
    ) -> None:
        super().__init__(stage, units, mesh, how, experts)
        self._later = later
        self._replicated = mesh.ndim > 1
        self._scattered: list[Any] = []  # groups, in this W
        for unit in units:
            first = unit[0] if isinstance(unit, list) else unit
            first.register_forward_pre_hook(self._marked)

    @contextmanager
    def backward(self, kind: Kind, *, last: bool) -> Iterator[None]:
        self._root.set_is_last_backward(last)
        self._root.set_requires_gradient_sync(kind is not Kind.I)
        self._root.set_requires_all_reduce(last)
        self._root.set_reshard_after_backward(last or self.zero == 3)
        if kind is Kind.I:
            for group in self.groups():
                group.reduce_grads = not self._waits(group)
        self._scattered = []
        yield
        if kind is Kind.W:
            for group in self.groups():
                if self._waits(group) and group not in self._scattered:
                    self._scatter(group)
            self._root._get_fsdp_state()._root_post_backward_final_callback()

    def _waits(self, group: Any) -> bool:
        """Whether it is W that scatters the group."""
        return self._replicated or _has_products(group)

    def _marked(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """The input of a unit, whose gradient tells that the unit's are made."""
        stream, *others = given
        if not stream.requires_grad:  # tokens, or nothing is trained
            return given

        def back(made: Tensor) -> Tensor:
            self._made(module)
            return made

        return exchanged(stream, lambda one: one, back), *others

    def _made(self, unit: nn.Module) -> None:
        """All gradients of *unit* are made or put off: the last of those comes next."""
        scatter = partial(self._scatter_unit, unit)
        if self._later.on:
            self._later.add(scatter)
        else:
            scatter()

    def _scatter_unit(self, unit: Any) -> None:
        for group in unit._get_fsdp_state()._fsdp_param_groups:
            self._scatter(group)

    def _scatter(self, group: Any) -> None:
        """All of a group's gradients; nothing of what has none since the last time."""
        for parameter in group.fsdp_params:
            _in_32_bits(parameter)
            whole = parameter._unsharded_param
            if whole.grad is None and parameter.unsharded_accumulated_grad is None:
                kind = parameter.reduce_dtype or whole.dtype
                parameter.unsharded_accumulated_grad = torch.zeros_like(
                    whole, dtype=kind
                )
        group.post_backward()
        self._scattered.append(group)


def _in_32_bits(parameter: Any) -> None:
    """What a pass has left of `fully_shard`'s *parameter*, to what gradients have."""
    parameter.accumulate_unsharded_grad_if_needed()
    parameter.to_accumulated_grad_if_needed()


def _has_products(group: Any) -> bool:
    """Whether W adds to the group: all but the embedding's."""
    return not any(isinstance(module, Embedding) for module in group.modules)
