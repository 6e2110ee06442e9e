"""A module of one's own over data-parallel ranks, which is called as a whole.

Gradients are exchanged by hooks of the module's forward (PyTorch's, of DDP and of
`fully_shard`), so that a part of it that is called by itself would train on this rank's
batch alone, or meet parameters that are not gathered. Such a call is refused, during
the first step: after it nothing watches any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from costmodel.layout import Layout
from profiles.errors import Unsupported
from runtime.api.supported import fsdp_level, state_offload
from runtime.models import Policy


class Replica(DistributedDataParallel):
    """DDP that trains a module with unused parameters, and has its attributes. Where
    none is unused, PyTorch warns once that it looked in vain."""

    def __init__(self, module: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__(
            module, process_group=mesh.get_group(), find_unused_parameters=True
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def replicated(
    module: nn.Module,
    members: Iterable[nn.Module],
    whole: DeviceMesh,
    shards: DeviceMesh,
    layout: Layout,
    rules: Policy,
) -> nn.Module:
    """*module* over the dp axis of *whole*, which ZeRO cuts as *shards*."""
    mesh, zero = whole["dp"], fsdp_level(layout)
    if zero == 0 and mesh.size() == 1:
        return module
    if zero == 0 and whole["tp"].size() == 1:
        module = Replica(module, mesh)
    elif zero == 0:  # PyTorch's DDP does not hold DTensors
        replicate(module, mesh=mesh)
    else:
        away = state_offload(layout).policy(next(module.parameters()).device)
        for unit in (*members, module):
            fully_shard(
                unit,
                mesh=shards,
                mp_policy=rules.fully_shard,
                reshard_after_forward=zero == 3,
                offload_policy=away,
            )
        assert isinstance(module, FSDPModule)
    require_whole_calls(module)
    return module


def require_whole_calls(model: nn.Module) -> None:
    """Raise Unsupported, up to the second forward that trains, for a part of *model*
    that is called outside its forward."""
    watch = _Watch(model)
    watch.handles = [
        model.register_forward_pre_hook(watch.enter, prepend=True),
        model.register_forward_hook(watch.leave, always_call=True),
    ]
    for name, part in model.named_modules():
        if part is not model and next(part.parameters(), None) is not None:
            handle = part.register_forward_pre_hook(watch.of(name), prepend=True)
            watch.handles.append(handle)


class _Watch:
    """Whether the forward of *model* is running, and how many have begun."""

    def __init__(self, model: nn.Module) -> None:
        own = model.module if isinstance(model, Replica) else model
        self._name = _kind(own)
        self._inside = self._begun = 0
        self.handles: list[Any] = []

    def enter(self, model: nn.Module, given: Any) -> None:
        self._inside += 1
        if not torch.is_grad_enabled():
            return
        self._begun += 1
        if self._begun > 1:
            for handle in self.handles:
                handle.remove()

    def leave(self, model: nn.Module, given: Any, made: Any) -> None:
        self._inside -= 1

    def of(self, name: str) -> Any:
        shown = name.removeprefix("module.")

        def refuse(part: nn.Module, given: Any) -> None:
            in_backward = torch._C._current_graph_task_id() != -1  # which recomputes
            if self._inside or in_backward or not torch.is_grad_enabled():
                return
            raise Unsupported(
                f"{shown} ({_kind(part)}) is called outside {self._name}."
                "forward, where its gradients are not exchanged between the ranks: "
                f"call it in {self._name}.forward, and train by that"
            )

        return refuse


def _kind(one: nn.Module) -> str:
    """Its class, by the name that its author gave it."""
    name = type(one).__name__
    return name.removeprefix("FSDP") if isinstance(one, FSDPModule) else name
