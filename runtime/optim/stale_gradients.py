"""An optimizer whose gradients are late (`runtime.optim.lateness`).

Weights are exchanged where they lie and put back, so that what autograd has saved of
them is what they are then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import e
from typing import Final

import torch
from torch import Tensor

from runtime.optim.lateness import Lateness, rate_factor, spike_factors
from runtime.optim.optimizer import Leaf, Optimizer

KEPT: Final = e**-2  # of delta after D steps


class Remedy:
    """An optimizer whose gradients are late, and what is done about that: any of
    `REMEDIES`, T1 for the first *steps*."""

    def __init__(
        self,
        optimizer: Optimizer,
        name: str,
        lateness: Lateness,
        *,
        steps: int = 0,
    ) -> None:
        self._optimizer, self._late = optimizer, lateness
        self._steps, self._parts = steps, frozenset(name.split("+"))
        self._delta: dict[str, Tensor] = {}

    def fill(self) -> None:
        """The pipeline is empty: what comes next is not late."""
        self._delta = {}

    @torch.no_grad()
    def update(
        self, gradients: Mapping[str, Tensor], factor: float, *, step: int
    ) -> None:
        """Update number *step*, of *gradients* that count *factor* times."""
        optimizer = self._optimizer
        leaves = [leaf for leaf in optimizer.leaves if leaf.name in gradients]
        looks_back = self._parts & {"spike", "t2"}
        before = {
            leaf.name: leaf.parameter.detach().clone() for leaf in leaves if looks_back
        }
        rate = optimizer.learning_rate
        if "t1" in self._parts:
            tau = self._late.tau
            optimizer.learning_rate = rate * rate_factor(step, self._steps, tau)
        optimizer.step(gradients, factor)
        if "spike" in self._parts:
            self._compensate(leaves, before, gradients)
        optimizer.learning_rate = rate
        if "t2" in self._parts and self._late.updates:
            kept = KEPT ** (1 / self._late.updates)
            for leaf in leaves:
                made = leaf.parameter.detach() - before[leaf.name]
                delta = self._delta.setdefault(leaf.name, torch.zeros_like(made))
                delta.mul_(kept).add_(made, alpha=1 - kept)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Around a forward."""
        rate, late = self._optimizer.learning_rate, self._late.updates
        velocity = self._velocity() if "predict" in self._parts else {}
        with self._moved(velocity, -rate * late):
            yield

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around a backward."""
        with self._moved(self._delta, -self._late.updates):
            yield

    def _compensate(
        self,
        leaves: list[Leaf],
        before: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
    ) -> None:
        """From w - lr·v, as torch has updated, to w - lr·(a·v + b·g)."""
        velocity, rate = self._velocity(), self._optimizer.learning_rate
        groups = self._optimizer.inner.param_groups
        decays = {id(one): group for group in groups for one in group["params"]}
        for leaf in leaves:
            group = decays[id(leaf.value)]
            a, b = spike_factors(group["momentum"], self._late.updates)
            made = gradients[leaf.name].add(
                before[leaf.name], alpha=group["weight_decay"]
            )
            leaf.parameter.data.add_(velocity[leaf.name], alpha=rate * (1 - a))
            leaf.parameter.data.add_(made, alpha=-rate * b)

    def _velocity(self) -> dict[str, Tensor]:
        """SGD's momentum of each parameter that has had an update."""
        state = self._optimizer.inner.state
        found = {
            leaf.name: state.get(leaf.value, {}).get("momentum_buffer")
            for leaf in self._optimizer.leaves
        }
        return {name: one for name, one in found.items() if one is not None}

    @contextmanager
    def _moved(self, ways: Mapping[str, Tensor], far: float) -> Iterator[None]:
        """Around what runs with weights that are moved so *far* along *ways*."""
        parameters = {leaf.name: leaf.parameter for leaf in self._optimizer.leaves}
        moved = ways if far else {}
        kept = {name: parameters[name].detach().clone() for name in moved}
        for name, way in moved.items():
            parameters[name].data.add_(way, alpha=far)
        try:
            yield
        finally:
            for name, whole in kept.items():
                parameters[name].data.copy_(whole)
