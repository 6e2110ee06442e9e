"""`HostUpdate`: an optimizer of a loop's own, stepping in the host's memory.

    optimizer = runtime.parallelize.optimizer(model, layout, partial(AdamW, lr=1e-3))
    optimizer.step(); optimizer.zero_grad()

It has the parameters of the model as fp32 copies of the host's, and whatever states
torch's optimizer keeps for them lie beside. Gradients go down when they are final: as
they are scattered (ZeRO-3), or at the step.

`DriveUpdate`: an optimizer of a loop's own, whose states are in a file of a drive.

    update = runtime.parallelize.optimizer(model, layout, partial(AdamW, lr=1e-3), dir)
    update.step(); update.zero_grad()

torch's optimizer is made as the loop says; its states are laid in the file before its
first step, so that they have to be of a kind that is known: AdamW's, Adam's or SGD's.
Each step takes them bucket by bucket (`runtime.offload.disk_optimizer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from costmodel.layout import Layout
from profiles.errors import Unsupported
from profiles.system import default_folder
from runtime.api.supported import states_away
from runtime.offload import DiskOptimizer, Host, HostGradients
from runtime.optim import Make, Settings, local, made_of


class DriveUpdate:
    """*make* of the parameters of *model*, their states in a file of *folder* as
    *layout* says. `inner` is torch's optimizer: learning rate schedulers are given it.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, make: Make, folder: Path | None
    ) -> None:
        away = states_away(layout)
        self._trained = {
            name: one for name, one in model.named_parameters() if one.requires_grad
        }
        first = next(model.parameters(), None)
        device = torch.device("cpu") if first is None else first.device
        self._disk = DiskOptimizer(
            self._trained.items(),
            Settings(name=kind_of(make)),
            device,
            folder or default_folder(),
            shards=away.shards,
            gradients=away.gradients,
            make=make,
        )
        self._down: HostGradients | None = None
        if away.gradients:
            self._down = self._disk.take_scattered()
            for name, one in self._trained.items():
                one.register_post_accumulate_grad_hook(self._sends(name, self._down))
        for root in _roots(model) if away.shards else ():
            self._disk.read_for(root, passes=away.passes)
        self.gradients_on = torch.device("cpu") if away.gradients else device
        self.factor = 1.0  # what the update multiplies gradients by

    @property
    def inner(self) -> torch.optim.Optimizer:
        return self._disk.inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of `inner`, with its learning rates."""
        return self.inner.param_groups

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients made since `zero_grad`."""
        self._disk.step(self._made(), self.factor)
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
        for some in self._disk.turns(self._made()):
            yield [(self._trained[name], gradient) for name, gradient in some.items()]

    def state_dict(self) -> dict[str, Any]:
        """As of `inner`; what is in the file is of this rank's shards."""
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` gave; the model has been loaded before."""
        self._disk.load(state)

    def _made(self) -> Mapping[str, Tensor]:
        if self._down is not None:
            return self._down.sums()
        return {
            name: local(one.grad)
            for name, one in self._trained.items()
            if one.grad is not None
        }

    def _sends(self, name: str, down: HostGradients) -> Callable[[Tensor], None]:
        def take(sharded: Tensor) -> None:
            assert sharded.grad is not None
            down.take(name, local(sharded.grad))
            sharded.grad = None

        return take


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


class HostUpdate:
    """*make* of copies of *parameters*; gradients leave early where *scattered*.

    `inner` is torch's optimizer: learning rate schedulers are given that one.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], make: Make, *, scattered: bool
    ) -> None:
        given = list(parameters)
        self._trained = [one for one in given if one.requires_grad]
        self._host = Host(given[0].device if given else torch.device("cpu"))
        self._down = HostGradients(self._host)
        self._masters = [self._copy(one) for one in self._trained]
        self.inner = made_of(make, self._masters)
        if scattered:
            for number, one in enumerate(self._trained):
                self._send_early(number, one)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of `inner`, with its learning rates."""
        return self.inner.param_groups

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients made since `zero_grad`."""
        made = dict(self._sums())
        for number, master in enumerate(self._masters):
            master.grad = made.get(number)
        self.inner.step()
        for master, one in zip(self._masters, self._trained, strict=True):
            master.grad = None
            self._host.up(master.detach(), local(one))
        self._host.arrived()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Forget all gradients, here and there."""
        self._down.begin()
        for one in self._trained:
            one.grad = None

    @torch.no_grad()
    def gradients(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each parameter that has one, and its gradient, in the host's memory."""
        for number, gradient in self._sums():
            yield self._trained[number], gradient

    def state_dict(self) -> dict[str, Any]:
        """As of `inner`; the copies are the model's own values."""
        return self.inner.state_dict()

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` gave; the model has been loaded before."""
        self.inner.load_state_dict(state)
        for master, one in zip(self._masters, self._trained, strict=True):
            master.copy_(local(one))

    def _sums(self) -> Iterator[tuple[int, Tensor]]:
        """What is here follows what was sent; both are added up."""
        for number, one in enumerate(self._trained):
            if one.grad is not None:
                self._down.take(str(number), local(one.grad))
                one.grad = None
        for name, gradient in self._down.sums().items():
            yield int(name), gradient

    def _copy(self, parameter: nn.Parameter) -> nn.Parameter:
        part = local(parameter)
        there = self._host.empty(part.shape, torch.float32)
        return nn.Parameter(there.copy_(part))

    def _send_early(self, number: int, parameter: nn.Parameter) -> None:
        def take(sharded: Tensor) -> None:
            assert sharded.grad is not None
            self._down.take(str(number), local(sharded.grad))
            sharded.grad = None

        parameter.register_post_accumulate_grad_hook(take)
