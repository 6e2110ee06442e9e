"""`runtime.parallel.data_parallel`: along which dimension ZeRO cuts a parameter."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard

from runtime.parallel.data_parallel import evenly


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
