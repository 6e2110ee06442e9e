"""`HostUpdate`: an optimizer of a loop's own, stepping in the host's memory.

    optimizer = runtime.parallelize.optimizer(model, layout, partial(AdamW, lr=1e-3))
    optimizer.step(); optimizer.zero_grad()

It has the parameters of the model as fp32 copies of the host's, and whatever states
torch's optimizer keeps for them lie beside. Gradients go down when they are final: as
they are scattered (ZeRO-3), or at the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from runtime.host import Host
from runtime.host_gradients import HostGradients
from runtime.optimizer import Make, local, made_of


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
