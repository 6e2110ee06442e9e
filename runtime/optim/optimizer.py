"""The optimizer on each rank's own shards: plain tensors, whatever the parallelism.

A parameter may be a DTensor (a slice over tp, dp or both) and may be kept in 16 bits;
torch's fused optimizers want like tensors, so they get the local shard of each, or its
fp32 master. Matrices decay, vectors do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from profiles.errors import Unsupported
from runtime.optim.grad_norm import scale

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Hyper-parameters, as command lines of the field spell them."""

    name: str = "adamw"
    lr: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0  # of the global gradient norm; 0: none


@dataclass(slots=True)
class Leaf:
    """What the optimizer updates for one parameter: its shard, or its master."""

    name: str
    parameter: nn.Parameter
    value: nn.Parameter
    master: bool

    @property
    def decays(self) -> bool:
        """Matrices do; the biases of a stack of experts are vectors, side by side."""
        return self.parameter.dim() > 1 and not self.name.endswith("bias")

    def attach(self, gradient: Tensor) -> None:
        """Point at today's shard (it may have moved) and its gradient."""
        if not self.master:
            self.value.data = local(self.parameter)
        self.value.grad = gradient

    def publish(self) -> None:
        """Write an updated master back to the working weight."""
        if self.master:
            local(self.parameter).copy_(self.value)


class Optimizer:
    """`step` updates every parameter from gradients given by name; where it *scales*
    them, it does so in place. torch's optimizer is of *settings*, or as *make* says."""

    scales = True

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        settings: Settings,
        make: Make | None = None,
    ) -> None:
        self.settings = settings
        self.leaves = [self._leaf(name, parameter) for name, parameter in parameters]
        if make is not None:
            self.inner = made_of(make, [leaf.value for leaf in self.leaves])
            return
        decayed = [item.value for item in self.leaves if item.decays]
        others = [item.value for item in self.leaves if not item.decays]
        groups = [
            {"params": members, "weight_decay": decay}
            for members, decay in ((decayed, settings.weight_decay), (others, 0.0))
            if members
        ]
        self.inner = _optimizer(settings)(groups)

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], factor: float = 1.0) -> None:
        """One update; *gradients* are local shards like the parameters', by name, and
        count *factor* times."""
        scale(gradients.values(), factor)
        for leaf in self.leaves:
            leaf.attach(gradients[leaf.name])
        self.inner.step()
        for leaf in self.leaves:
            leaf.value.grad = None
        self._publish()

    def turns(self, gradients: Mapping[str, Tensor]) -> Iterator[Mapping[str, Tensor]]:
        """*gradients*, in parts that may be in memory at once, one after another."""
        yield gradients

    @property
    def learning_rate(self) -> float:
        return float(self.inner.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        for group in self.inner.param_groups:
            group["lr"] = rate

    def _leaf(self, name: str, parameter: nn.Parameter) -> Leaf:
        part = local(parameter)
        master = part.dtype is not torch.float32
        value = nn.Parameter(part.float() if master else part)
        return Leaf(name, parameter, value, master)

    def _publish(self) -> None:
        for leaf in self.leaves:
            leaf.publish()


def made_of(make: Make, values: list[nn.Parameter]) -> torch.optim.Optimizer:
    """*make*'s optimizer of *values*. torch's take no empty list, as of a stage that
    is frozen: a parameter without numbers stands in."""
    return make(values or [nn.Parameter(torch.empty(0))])


def local(parameter: Tensor) -> Tensor:
    """This rank's part of a parameter, sharing its storage."""
    plain = parameter.detach()
    return plain.to_local() if isinstance(plain, DTensor) else plain


def _optimizer(settings: Settings) -> Callable[[Any], torch.optim.Optimizer]:
    adam: dict[str, Any] = {
        "lr": settings.lr,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "fused": True,
    }
    momentum = {"sgd": 0.0, "sgd-momentum": settings.beta1}
    if settings.name == "adamw":
        return lambda groups: torch.optim.AdamW(groups, **adam)
    if settings.name == "adam":
        return lambda groups: torch.optim.Adam(groups, **adam)
    if settings.name in momentum:
        return lambda groups: torch.optim.SGD(
            groups, lr=settings.lr, momentum=momentum[settings.name], fused=True
        )
    raise Unsupported(
        f"optimizer {settings.name} is not carried out; adamw, adam, sgd and "
        "sgd-momentum are"
    )
