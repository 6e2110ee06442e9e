"""`profiles.measure.timing.windows`: what is timed is what the key says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from profiles import load_model
from profiles.measure.plan import operations
from profiles.measure.timing import KINDS
from profiles.measure.timing.operands import flops
from profiles.measure.timing.windows import Convolution, one_pool
from profiles.models import Job
from profiles.samples import CONVOLUTIONS, kind_of
from tests.support.measured_module import OWN


@pytest.mark.parametrize(
    ("layer", "side"),
    [
        (nn.Conv2d(3, 8, 7, 2, 3, bias=False), 32),
        (nn.Conv2d(4, 8, 3, 1, 1, groups=2, bias=False), 9),
        (nn.Conv3d(2, 3, 1, 1, bias=False), 4),
        (nn.Conv1d(2, 3, 4, 4, bias=False), 16),
        (nn.ConvTranspose3d(4, 2, 2, 2, bias=False), 3),
        (nn.ConvTranspose2d(4, 2, 4, 2, 1, bias=False), 5),
    ],
)
def test_a_convolution_is_known_by_its_sides(layer: Any, side: int) -> None:
    weight, window = layer.weight, layer.kernel_size
    given = torch.randn(2, layer.in_channels, *([side] * len(window)))
    wanted = layer(given)
    shape = (2, layer.in_channels, layer.out_channels, layer.groups)
    sides = (*given.shape[2:], *wanted.shape[2:], *window, *layer.stride)
    one = Convolution.of((*shape, *sides))
    assert one.weight == weight.shape
    assert torch.allclose(one(given, weight), wanted, atol=1e-5)


def test_a_pooling_is_known_by_its_sides() -> None:
    given = torch.randn(1, 2, 32, 32)
    wanted = nn.functional.max_pool2d(given, 3, 2, 1)
    shape, *how = one_pool((1, 2, 32, 32, 16, 16, 3, 3))
    pool: Any = nn.functional.max_pool2d
    assert shape == given.shape
    assert torch.equal(pool(given, *how), wanted)


def job_of(name: str) -> Job:
    return load_model(name).job(global_batch=2)


@pytest.mark.parametrize("name", ["resnet-50", "unet-2d", "unet-3d", f"{OWN}:unet"])
def test_networks_of_convolutions_have_clocks(name: str) -> None:
    """Of a spec and of a module: all but what moves next to nothing."""
    job = job_of(name)
    found = operations(job, parts=(1,), precisions=("fp32",), most_tokens=2)
    kinds = {one.kind for one in found}
    assert kinds & set(CONVOLUTIONS)
    every = {kind_of(one) for block in job.graph.distinct() for one in block.operators}
    assert every - set(KINDS) <= {"mean", "pass"}


def test_a_spec_and_its_trace_are_measured_alike() -> None:
    keys = []
    for name in ("resnet-50", f"{OWN}:resnet_50"):
        found = operations(
            job_of(name), parts=(1,), precisions=("fp32",), most_tokens=1
        )
        convolutions = [one for one in found if one.kind in CONVOLUTIONS]
        keys.append({(one.kind, one.shape) for one in convolutions})
        forward = sum(flops(one) for one in convolutions if one.direction == "forward")
        assert forward > 0
    assert keys[0] == keys[1]


def test_attention_to_all_tokens_has_a_clock_of_its_own() -> None:
    found = operations(
        load_model("bert-base").job(global_batch=1, seq_len=128),
        parts=(1,),
        precisions=("fp32",),
        most_tokens=128,
    )
    kinds = {one.kind for one in found}
    assert "full-attention" in kinds
    assert "attention" not in kinds
