"""`runtime.optim.optimizer`: masters and the weights that are computed with."""

from __future__ import annotations

import torch
from torch import nn

from runtime.optim.optimizer import Optimizer, Settings
from tests.runtime.dispatches import Dispatches


def test_masters_are_written_back_together_to_where_weights_are_now() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8) for _ in range(6)]
    module = nn.Sequential(*layers).bfloat16()
    optimizer = Optimizer(module.named_parameters(), Settings(lr=0.1))
    moved = layers[0].weight
    moved.data = moved.data.clone()
    gradients = {
        name: torch.randn(one.shape) for name, one in module.named_parameters()
    }
    before = [one.detach().clone() for one in module.parameters()]
    with Dispatches() as dispatched:
        optimizer.step(gradients)
    assert dispatched.seen["_foreach_copy_"] == 1
    assert not dispatched.seen["copy_"] + dispatched.seen["_to_copy"]
    for leaf, old in zip(optimizer.leaves, before, strict=True):
        assert torch.equal(leaf.parameter, leaf.value.bfloat16())
        assert not torch.equal(leaf.parameter, old)


def test_a_module_in_32_bits_has_nothing_to_write_back() -> None:
    module = nn.Linear(4, 4)
    optimizer = Optimizer(module.named_parameters(), Settings())
    gradients = {name: torch.ones(one.shape) for name, one in module.named_parameters()}
    with Dispatches() as dispatched:
        optimizer.step(gradients)
    assert not dispatched.seen["_foreach_copy_"] + dispatched.seen["copy_"]
