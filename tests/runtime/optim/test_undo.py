"""`runtime.optim.undo`: a step taken back gives the state before it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from profiles.errors import Unsupported
from runtime.optim.optimizer import Optimizer, Settings

SHAPES = {"a.weight": (5, 7), "b.bias": (7,), "c.weight": (3, 2, 4)}
RELATIVE = 1e-6


def made(name: str, *, dtype: torch.dtype = torch.float32, **more: Any) -> Optimizer:
    torch.manual_seed(1)
    parameters = [
        (key, nn.Parameter(torch.randn(shape).to(dtype)))
        for key, shape in SHAPES.items()
    ]
    return Optimizer(parameters, Settings(name=name, lr=0.01, **more))


def gradients(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        key: torch.randn(shape, generator=generator) for key, shape in SHAPES.items()
    }


def state(optimizer: Optimizer) -> dict[str, Tensor]:
    found = {leaf.name: leaf.value.detach().clone() for leaf in optimizer.leaves}
    for leaf in optimizer.leaves:
        for kind, value in optimizer.inner.state.get(leaf.value, {}).items():
            if isinstance(value, Tensor):
                found[f"{leaf.name} {kind}"] = value.clone()
    return found


def farthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Of all tensors, how far apart they are relative to their norm."""
    apart = []
    for name, value in one.items():
        norm = float(value.norm()) or 1.0
        apart.append(float((value - other[name]).norm()) / norm)
    return max(apart)


@given(
    name=st.sampled_from(["adamw", "adam", "sgd", "sgd-momentum"]),
    steps=st.integers(1, 12),
    decay=st.sampled_from([0.0, 0.1]),
    factor=st.sampled_from([1.0, 0.3]),
)
def test_step_then_undo_is_where_it_was(
    name: str, steps: int, decay: float, factor: float
) -> None:
    optimizer = made(name, weight_decay=decay)
    for step in range(steps):
        optimizer.step(gradients(step))
    before = state(optimizer)
    taken = gradients(steps)
    optimizer.step(taken, factor)  # which it scales in place
    assert farthest(before, state(optimizer)) > 1e-4
    optimizer.undo(taken)
    assert farthest(before, state(optimizer)) <= RELATIVE
    optimizer.step(gradients(steps), factor)
    again = made(name, weight_decay=decay)
    for step in range(steps + 1):
        again.step(gradients(step), factor if step == steps else 1.0)
    assert farthest(state(again), state(optimizer)) <= RELATIVE


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "sgd-momentum"])
def test_the_first_step_too(name: str) -> None:
    optimizer = made(name)
    before, taken = state(optimizer), gradients(0)
    optimizer.step(taken)
    optimizer.undo(taken)
    after = state(optimizer)
    assert farthest(before, after) <= RELATIVE
    if name.startswith("adam"):
        moments = [one for key, one in after.items() if " " in key]
        assert moments
        assert not any(float(one.abs().max()) for one in moments)


def test_a_master_goes_back_and_its_weight_with_it() -> None:
    optimizer = made("adamw", dtype=torch.bfloat16)
    optimizer.step(gradients(0))
    weights = [leaf.parameter.detach().clone() for leaf in optimizer.leaves]
    before, taken = state(optimizer), gradients(1)
    optimizer.step(taken)
    optimizer.undo(taken)
    assert farthest(before, state(optimizer)) <= RELATIVE
    for leaf, weight in zip(optimizer.leaves, weights, strict=True):
        torch.testing.assert_close(leaf.parameter.detach(), weight, rtol=1e-2, atol=0)


class Halfway(torch.optim.AdamW):
    """Is interrupted after the first of its groups."""

    def step(self, closure: Any = None) -> Any:
        groups, self.param_groups = self.param_groups, self.param_groups[:1]
        super().step(closure)
        self.param_groups = groups
        raise RuntimeError("Connection closed by peer")


def test_only_what_was_updated_is_taken_back() -> None:
    optimizer = made("adamw")
    optimizer.watched = True
    optimizer.step(gradients(0))
    before, taken = state(optimizer), gradients(1)
    optimizer.inner.__class__ = Halfway
    with pytest.raises(RuntimeError, match="closed by peer"):
        optimizer.step(taken)
    optimizer.inner.__class__ = torch.optim.AdamW
    halfway = state(optimizer)
    assert not torch.equal(halfway["a.weight"], before["a.weight"])
    assert torch.equal(halfway["b.bias"], before["b.bias"])
    optimizer.undo(taken)
    assert not optimizer.interrupted
    assert farthest(before, state(optimizer)) <= RELATIVE


@pytest.mark.parametrize(
    "make",
    [
        partial(torch.optim.AdamW, amsgrad=True),
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
        torch.optim.Adagrad,
    ],
)
def test_an_optimizer_that_forgets_is_refused(make: Any) -> None:
    value = nn.Parameter(torch.ones(2, 2))
    optimizer = Optimizer([("a.weight", value)], Settings(), make)
    with pytest.raises(Unsupported, match="cannot be taken back"):
        optimizer.undo({"a.weight": torch.ones(2, 2)})
