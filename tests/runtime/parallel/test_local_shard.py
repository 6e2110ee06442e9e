"""`runtime.parallel.tensor_parallel`: the same numbers as DTensor's own way, for
less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from runtime.parallel.tensor_parallel import local_shard

RANKS = 2


@pytest.fixture(autouse=True)
def ranks() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield
    dist.destroy_process_group()


def gradient(placement: Any, *, ours: bool) -> DTensor:
    mesh = DeviceMesh("cpu", list(range(RANKS)))
    values = torch.arange(12.0).view(3, 4)
    whole = DTensor.from_local(values, mesh, [placement], run_check=False)
    parameter = nn.Parameter(whole)
    to_local: Any = DTensor.to_local
    shard = local_shard(parameter) if ours else to_local(parameter)
    assert torch.equal(shard, values)
    (shard.t() * torch.arange(3.0)).square().sum().backward()
    assert isinstance(parameter.grad, DTensor)
    return parameter.grad


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
def test_the_gradient_is_where_the_parameter_is(placement: Any) -> None:
    own, theirs = (gradient(placement, ours=ours) for ours in (True, False))
    assert torch.equal(own.to_local(), theirs.to_local())
    assert own.placements == theirs.placements
    assert own.shape == theirs.shape
    assert own.stride() == theirs.stride()


def test_a_plain_parameter_is_whole() -> None:
    parameter = nn.Parameter(torch.ones(2))
    assert local_shard(parameter) is parameter
