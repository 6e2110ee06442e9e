"""`runtime.parallel.data_parallel`: how ZeRO cuts a parameter, and what is summed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard

from costmodel.schedule import Kind
from runtime.parallel.data_parallel import Buffered, evenly
from tests.runtime.dispatches import Dispatches


@pytest.mark.parametrize(
    ("shape", "ranks", "dim"),
    [
        ((64, 16), 2, 0),
        ((64,), 8, 0),
        ((1, 64, 32), 2, 1),  # one expert on two ranks
        ((4, 64), 8, 1),  # a router of fewer experts than ranks
        ((3, 5, 8), 4, 2),
        ((3, 5), 2, 0),  # nothing divides: padded
    ],
)
def test_parameters_are_cut_where_ranks_divide(
    shape: tuple[int, ...], ranks: int, dim: int
) -> None:
    parameter = nn.Parameter(torch.empty(shape))
    assert evenly(parameter, ranks=ranks) == Shard(dim)


class Alone:
    """A group of one rank."""

    def size(self) -> int:
        return 1


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_gradients_of_vectors_are_added_together(kind: torch.dtype) -> None:
    """Three micro-batches: a copy of each matrix and two additions, and as many of all
    vectors together (and before an addition a cast of all to 32 bits)."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(5)]
    stage = nn.Sequential(*layers).to(kind)
    inputs = torch.randn(3, 2, 8).to(kind)
    wanted = {name: torch.zeros(one.shape) for name, one in stage.named_parameters()}
    for one in inputs:
        made = torch.autograd.grad(stage(one).square().sum(), [*stage.parameters()])
        for (name, _), gradient in zip(stage.named_parameters(), made, strict=True):
            wanted[name] += gradient
    parallel = Buffered(stage, Alone(), experts=None, micro_batches=3, mean_over=1)  # type: ignore[arg-type]
    parallel.begin()
    with Dispatches() as dispatched:
        for number, one in enumerate(inputs):
            loss = stage(one).square().sum()
            with parallel.backward(Kind.B, last=number == 2):
                loss.backward()
    parallel.finish()
    for name, gradient in parallel.gradients():
        assert torch.equal(gradient, wanted[name]), name
    wide = kind is torch.float32
    assert dispatched.seen["copy_"] == 5
    assert dispatched.seen["add_"] == 2 * 5
    assert dispatched.seen["_foreach_add_"] == 2
    assert dispatched.seen["_foreach_copy_"] == (1 if wide else 3)
