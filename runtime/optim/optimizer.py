"""The optimizer on each rank's own shards, clipping before it and the loss's scale.

A parameter may be a DTensor (a slice over tp, dp or both) and may be kept in 16 bits;
torch's fused optimizers want like tensors, so they get the local shard of each, or its
fp32 master. Matrices decay, vectors do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from profiles.errors import Unsupported
from runtime.optim.undo import require_undoable, undo


@dataclass(frozen=True, slots=True)
class Piece:
    """A local gradient, and how many ranks of the job hold the same numbers."""

    gradient: Tensor
    copies: int


def global_norm(
    turns: Iterable[Iterable[Piece]], *, device: torch.device | str = "cpu"
) -> Tensor:
    """L2 norm over all parameters of the model, each counted once; a 0-d fp32 tensor.

    Pieces come in *turns*, of which each may be let go before the next one. One
    all-reduce of one number over all ranks, from *device* where this one has no piece.
    """
    found = [squares for pieces in turns for squares in _squares(pieces)]
    nothing = torch.zeros((), dtype=torch.float64, device=device)
    total = torch.stack(found).sum() if found else nothing
    if dist.get_world_size() > 1:
        dist.all_reduce(total)
    return total.sqrt().float()


def clip_factor(norm: float, most: float) -> float:
    """What gradients of *norm* are multiplied by so that it is at most *most*; 1 where
    it is, or where *most* is 0.

    >>> clip_factor(0.5, 1.0), round(clip_factor(2.0, 1.0), 3), clip_factor(2.0, 0.0)
    (1.0, 0.5, 1.0)
    """
    factor = most / (norm + 1e-6) if most > 0 else 1.0
    return factor if factor < 1.0 else 1.0


def scale(gradients: Iterable[Tensor], factor: float) -> None:
    """Multiply *gradients* in place."""
    some = list(gradients)
    if factor != 1 and some:
        torch._foreach_mul_(some, factor)


def _squares(pieces: Iterable[Piece]) -> Iterator[Tensor]:
    """Sums of their squares, each piece's by the ranks that hold the same; none of no
    piece, as where all of a stage is frozen."""
    by_copies: dict[int, list[Tensor]] = defaultdict(list)
    for piece in pieces:
        by_copies[piece.copies].append(piece.gradient)
    for copies, gradients in by_copies.items():
        norms = torch.stack(torch._foreach_norm(gradients))
        yield (norms.double() ** 2).sum() / copies


def parts(parameter: Tensor) -> int:
    """Into how many different pieces a parameter's placements cut it; 1 if whole."""
    found = 1
    if isinstance(parameter, DTensor):
        for axis, placement in enumerate(parameter.placements):
            if not placement.is_replicate():
                found *= parameter.device_mesh.size(axis)
    return found


FIRST: Final = 2.0**16
INTERVAL: Final = 2000
LEAST: Final = 1.0


@dataclass(slots=True)
class LossScale:
    """Keeps the gradients of 16-bit floats from vanishing: the loss is multiplied by
    `value` before the backward, and the gradients are divided after it.

    A step whose gradients overflow is left out and the scale halved; after `INTERVAL`
    good ones in a row it is doubled (Micikevicius et al., ICLR 2018, section 3.2).
    Where it is not *dynamic* it stays 1 and no step is left out.
    """

    dynamic: bool
    value: float = 1.0
    good_steps: int = 0

    def judge(self, *, finite: bool) -> bool:
        """Whether the step that was made with this scale counts; then the next scale.

        >>> scale = LossScale(dynamic=True, value=4.0)
        >>> scale.judge(finite=False), scale.value
        (False, 2.0)
        """
        if not self.dynamic:
            return True
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.value = max(self.value / 2, LEAST)
        elif self.good_steps == INTERVAL:
            self.value, self.good_steps = self.value * 2, 0
        return finite


def loss_scale(dynamic: bool) -> LossScale:
    """The scale of a run's first step."""
    return LossScale(dynamic, FIRST if dynamic else 1.0)


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
    rounding: Callable[[Tensor, int], None] | None = None  # of what is updated
    watched = False  # whether it keeps what `undo` needs of an interrupted update
    _updates = 0  # for optimizers that do not count their own
    _begun: Mapping[str, float] | None = None  # updates by leaf, before one under way

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
            if leaf.name in gradients:
                leaf.attach(gradients[leaf.name])
        if self.watched:
            self._begun = {leaf.name: self._steps(leaf) for leaf in self.leaves}
        self.inner.step()  # those without a gradient are passed over
        self._begun = None
        for number, leaf in enumerate(self.leaves):
            leaf.value.grad = None
            if self.rounding is not None:
                step = int(self._steps(leaf)) or self._updates
                self.rounding(leaf.value.data, step * len(self.leaves) + number)
        self._updates += 1
        self._publish()

    @torch.no_grad()
    def undo(self, gradients: Mapping[str, Tensor]) -> None:
        """Take back the last update, as far as it came, by the *gradients* that it took
        (which it scaled)."""
        require_undoable(self.inner)
        taken = {
            leaf.value: gradients[leaf.name]
            for leaf in self.leaves
            if leaf.name in gradients and self._updated(leaf)
        }
        undo(self.inner, taken)
        for leaf in self.leaves:
            leaf.value.grad = None
        self._begun = None
        self._publish()

    @property
    def interrupted(self) -> bool:
        """Whether an update was begun that has not ended."""
        return self._begun is not None

    def _updated(self, leaf: Leaf) -> bool:
        """Whether the last update, which may not have ended, came to *leaf*."""
        if self._begun is None:
            return True
        if "step" not in self.inner.state.get(leaf.value, {}) and self._begun:
            raise Unsupported(
                f"{type(self.inner).__name__} does not count its steps: one that was "
                "interrupted cannot be taken back"
            )
        return self._steps(leaf) > self._begun[leaf.name]

    def _steps(self, leaf: Leaf) -> float:
        """How many updates *leaf* has had, where the optimizer counts them."""
        return float(self.inner.state.get(leaf.value, {}).get("step", 0.0))

    def turns(self, gradients: Mapping[str, Tensor]) -> Iterator[Mapping[str, Tensor]]:
        """*gradients*, in parts that may be in memory at once, one after another."""
        yield gradients

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """What torch's optimizer gave as its state; masters are of the parameters as
        they are now."""
        self.inner.load_state_dict(state)
        for leaf in self.leaves:
            if leaf.master:
                leaf.value.copy_(local(leaf.parameter))

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
        # To autograd an update changes no parameter: passes may be in flight.
        value = nn.Parameter(part.float() if master else part.data)
        return Leaf(name, parameter, value, master)

    def _publish(self) -> None:
        """Write updated masters back to the working weights, those of a type at once:
        a device casts many tensors in one kernel."""
        by_type: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for leaf in self.leaves:
            if leaf.master:
                part = local(leaf.parameter)
                by_type[part.dtype].append((part, leaf.value.detach()))
        for pairs in by_type.values():
            parts, masters = zip(*pairs, strict=True)
            torch._foreach_copy_(parts, masters)


def made_of(make: Make, values: list[nn.Parameter]) -> torch.optim.Optimizer:
    """*make*'s optimizer of *values*. torch's take no empty list, as of a stage that
    is frozen: a parameter without numbers stands in."""
    return make(values or [nn.Parameter(torch.empty(0))])


def local(parameter: Tensor) -> Tensor:
    """This rank's part of a parameter, sharing its storage."""
    plain = parameter.detach()
    return plain.to_local() if isinstance(plain, DTensor) else plain


def _optimizer(settings: Settings) -> Callable[[Any], torch.optim.Optimizer]:
    every: dict[str, Any] = {"lr": settings.lr, "fused": True}
    adam = {"betas": (settings.beta1, settings.beta2), "eps": settings.eps, **every}
    known: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "adamw": partial(torch.optim.AdamW, **adam),
        "adam": partial(torch.optim.Adam, **adam),
        "sgd": partial(torch.optim.SGD, **every),
        "sgd-momentum": partial(torch.optim.SGD, momentum=settings.beta1, **every),
    }
    if settings.name not in known:
        raise Unsupported(
            f"optimizer {settings.name} is not supported; adamw, adam, sgd and "
            "sgd-momentum are"
        )
    return known[settings.name]
