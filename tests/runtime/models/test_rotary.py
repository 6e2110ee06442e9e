"""Rotary positions: pairs of a head's dimensions are turned, in few passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from profiles.models import Numerics
from runtime.models.attention import Attention, angles, turned
from tests.runtime.dispatches import Dispatches
from tests.support.fact_settings import SPEC

LENGTH, WIDTH = 7, 8
NUMERICS = Numerics()


def by_formula(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_three_passes_turn_and_three_turn_back(kind: torch.dtype) -> None:
    """Against the formula in 64 bits: one rounding of each product, and of the sum."""
    torch.manual_seed(0)
    turns = angles(torch.arange(LENGTH), WIDTH, torch.device("cpu"), NUMERICS)
    turns = turns[0].to(kind), turns[1].to(kind)
    packed = torch.randn(2, LENGTH, 3, WIDTH).to(kind).requires_grad_()
    heads = packed.transpose(1, 2)  # as they come out of one product
    upward = torch.randn(2, 3, LENGTH, WIDTH).to(kind)
    with Dispatches() as onward:
        made = turned(heads, *turns)
    with Dispatches() as back:
        (gradient,) = torch.autograd.grad(made, packed, upward)
    assert onward.total == back.total == 3
    exact = packed.detach().double().requires_grad_()
    wanted = by_formula(exact.transpose(1, 2), *(one.double() for one in turns))
    (of_packed,) = torch.autograd.grad(wanted, exact, upward.double())
    bits = 2 * torch.finfo(kind).eps
    for one, other in ((made, wanted), (gradient, of_packed)):
        most = bits * float(other.detach().abs().max())
        torch.testing.assert_close(one.double(), other, rtol=0, atol=most)


def test_angles_are_cast_once_for_all_micro_batches() -> None:
    spec = replace(SPEC, position="rotary")
    attention = Attention(spec, 0).bfloat16()
    stream = torch.randn(1, 4, spec.hidden).bfloat16()
    attention(stream)
    with Dispatches() as dispatched:
        attention.heads(attention.qkv(stream))
    assert not dispatched.seen["_to_copy"] + dispatched.seen["cos"]
    attention.float()
    wanted = angles(torch.arange(4), spec.head_dim, stream.device, spec.numerics)
    attention(stream.float())
    for one, other in zip(attention._turns(stream.float()), wanted, strict=True):
        assert torch.equal(one, other)
