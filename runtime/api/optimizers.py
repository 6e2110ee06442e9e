"""Optimizers of a loop of one's own, for states that are not on the device.

    update = runtime.api.optimizer(model, layout, partial(AdamW, lr=1e-3))
    update.step(); update.zero_grad()

`HostUpdate` has the parameters of the model as fp32 copies in the host's memory, and
whatever states torch's optimizer keeps for them lie beside. Gradients go down when they
are final: as they are scattered (ZeRO-3), or at the step.

`DriveUpdate` has torch's states in a file of a drive. They are laid there before the
first step, so that they have to be of a kind that is known: AdamW's, Adam's or SGD's.
Each step takes them bucket by bucket (`runtime.offload.disk_optimizer`).
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
from profiles.system import default_folder
from runtime.api.supported import states_away
from runtime.offload import DiskOptimizer, Host, HostGradients, HostOptimizer
from runtime.optim import Make, Settings, local


class Update:
    """The step of *driver*, from gradients of *model* that go *down* where that is
    given: *early*, as they are made, or when they are asked for.

    `inner` is torch's optimizer: learning rate schedulers are given that one.
    """

    def __init__(
        self,
        model: nn.Module,
        driver: HostOptimizer | DiskOptimizer,
        down: HostGradients | None,
        *,
        early: bool,
    ) -> None:
        self._trained, self._driver, self._down = trained(model), driver, down
        self.gradients_on = torch.device("cpu") if down else device_of(model)
        self.factor = 1.0  # what the update multiplies gradients by
        if early and down is not None:
            for name, one in self._trained.items():
                down.follow(name, one)

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


class HostUpdate(Update):
    """*make* of copies of the parameters; gradients leave early where *scattered*."""

    def __init__(self, model: nn.Module, make: Make, *, scattered: bool) -> None:
        device = device_of(model)
        driver = HostOptimizer(trained(model).items(), Settings(), device, make)
        super().__init__(model, driver, HostGradients(Host(device)), early=scattered)


class DriveUpdate(Update):
    """*make* of the parameters of *model*, their states in a file of *folder* as
    *layout* says."""

    def __init__(
        self, model: nn.Module, layout: Layout, make: Make, folder: Path | None
    ) -> None:
        away = states_away(layout)
        driver = DiskOptimizer(
            trained(model).items(),
            Settings(name=kind_of(make)),
            device_of(model),
            folder or default_folder(),
            shards=away.shards,
            gradients=away.gradients,
            make=make,
        )
        down = driver.take_scattered() if away.gradients else None
        super().__init__(model, driver, down, early=True)
        for root in _roots(model) if away.shards else ():
            driver.read_for(root, passes=away.passes)


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
        f"states of {type(made).__name__}, as it is made, are not known before its "
        "first step, so that none can be laid in a file: choose AdamW or Adam without "
        "amsgrad, SGD without dampening, or --offload-to cpu"
    )


def _roots(model: nn.Module) -> Iterator[nn.Module]:
    """What `fully_shard` shards: the module, or each stage of a pipeline."""
    if isinstance(model, FSDPModule):
        yield model
        return
    yield from getattr(model, "parts", {}).values()
