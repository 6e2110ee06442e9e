"""`Update`: the optimizer of a user's own loop, for states that are not on the device.

    update = runtime.api.optimizer(model, layout, partial(AdamW, lr=1e-3))
    update.step(); update.zero_grad()

In the host's memory are fp32 copies of the parameters, and beside them whatever states
torch's optimizer keeps (`runtime.offload.HostOptimizer`). On a drive states are laid
out in a file before the first step, so they have to be of a known kind: AdamW's, Adam's
or SGD's (`runtime.offload.DiskOptimizer`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from costmodel.layout import Layout
from profiles.errors import Unsupported
from runtime.api.supported import fsdp_level, state_offload
from runtime.offload import DiskOptimizer, Host, HostGradients
from runtime.optim import Make, Settings, local


class Update:
    """The update of *model*'s parameters by *make*'s optimizer, its states where
    *layout* says: on a drive in a file of *folder*.

    Gradients go to the host (or the file) as they are scattered, or, where they are
    not, when they are asked for. `inner` is torch's optimizer: learning rate schedulers
    are given that one.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, make: Make, folder: Path | None = None
    ) -> None:
        away, device = state_offload(layout), device_of(model)
        settings = Settings(name=kind_of(make)) if away.on_drive else Settings()
        self._trained = trained(model)
        self._driver = away.optimizer(
            self._trained.items(), settings, device, folder=folder, make=make
        )
        self._down: HostGradients | None = None
        early = fsdp_level(layout) >= 2
        if isinstance(self._driver, DiskOptimizer):
            early = away.gradients
            self._down = self._driver.take_scattered() if early else None
            for root in _roots(model) if away.shards else ():
                self._driver.read_for(root, passes=away.passes)
        elif away.masters:
            self._down = HostGradients(Host(device))
        self.gradients_on = torch.device("cpu") if self._down else device
        self.factor = 1.0  # what the update multiplies gradients by
        if early and self._down is not None:
            for name, one in self._trained.items():
                self._down.follow(name, one)

    @property
    def inner(self) -> torch.optim.Optimizer:
        return self._driver.inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of `inner`, with its learning rates."""
        return self.inner.param_groups

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients made since `zero_grad`."""
        self._driver.step(self._made(), self.factor)
        self.zero_grad()

    def zero_grad(self) -> None:
        """Forget all gradients, here and there."""
        self.factor = 1.0
        if self._down is not None:
            self._down.begin()
        for one in self._trained.values():
            one.grad = None

    @torch.no_grad()
    def turns(self) -> Iterator[list[tuple[nn.Parameter, Tensor]]]:
        """Each parameter that has a gradient, and that, as many as may be in memory at
        once."""
        for some in self._driver.turns(self._made()):
            yield [(self._trained[name], gradient) for name, gradient in some.items()]

    def state_dict(self) -> dict[str, Any]:
        """As of `inner`; copies are the model's own values, and what is in a file is of
        this rank's shards."""
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` gave; the model has been loaded before."""
        self._driver.load(state)

    def _made(self) -> Mapping[str, Tensor]:
        """What is here follows what was sent; both are added up."""
        made = {
            name: local(one.grad)
            for name, one in self._trained.items()
            if one.grad is not None
        }
        if self._down is None:
            return made
        for name, gradient in made.items():
            self._down.take(name, gradient)
            self._trained[name].grad = None
        return self._down.sums()


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of *model* that are not frozen, by name."""
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


def device_of(module: nn.Module) -> torch.device:
    """Where the parameters of *module* are; the CPU where it has none."""
    first = next(module.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def kind_of(make: Make) -> str:
    """The optimizer that *make* makes, as `runtime.optim.optimizer` calls it.

    Raises Unsupported for one whose states are not known before its first step.
    """
    made = make([nn.Parameter(torch.zeros(1))])
    group = made.param_groups[0]
    if type(made) is torch.optim.AdamW and not group["amsgrad"]:
        return "adamw"
    if type(made) is torch.optim.Adam and not group["amsgrad"]:
        return "adam"
    if type(made) is torch.optim.SGD and not group["dampening"]:
        return "sgd-momentum" if group["momentum"] else "sgd"
    raise Unsupported(
        f"the states of {type(made).__name__} are not known before its first step, so "
        "they cannot be put in a file: choose AdamW or Adam without amsgrad, SGD "
        "without dampening, or --offload-to cpu"
    )


def _roots(model: nn.Module) -> Iterator[nn.Module]:
    """What `fully_shard` shards: the module, or each stage of a pipeline."""
    if isinstance(model, FSDPModule):
        yield model
        return
    yield from getattr(model, "parts", {}).values()
