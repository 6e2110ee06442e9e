"""`HostOptimizer`: masters, moments and update in the host's memory.

    gradients go down → the update, by the host's cores → working weights come back

The device keeps the weights that it computes with, and nothing else of the optimizer
(ZeRO-Offload: Ren et al., ATC 2021, section 4). Copies go through pinned memory on a
stream of their own: while one weight comes back, the next one is cast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from runtime.offload.gradients import HostGradients
from runtime.offload.host_copy import Host
from runtime.optim import Leaf, Optimizer, Settings, local, scale


class HostOptimizer(Optimizer):
    """As `Optimizer`, of parameters on *device*; gradients may be on either side."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        settings: Settings,
        device: torch.device,
    ) -> None:
        self._host = Host(device)
        self._down = HostGradients(self._host)
        super().__init__(parameters, settings)

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], factor: float = 1.0) -> None:
        """One update; returns when the weights are on their way back."""
        scale(gradients.values(), factor)
        self._down.begin()
        for name, gradient in gradients.items():
            self._down.take(name, gradient)
        super().step(self._down.sums())
        self._down.begin()

    def _leaf(self, name: str, parameter: nn.Parameter) -> Leaf:
        part = local(parameter)
        there = self._host.empty(part.shape, torch.float32)
        value = nn.Parameter(there.copy_(part))
        return Leaf(name, parameter, value, master=True)

    def _publish(self) -> None:
        for leaf in self.leaves:
            self._host.up(leaf.value.detach(), local(leaf.parameter))
        self._host.arrived()
