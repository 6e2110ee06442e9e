"""`runtime.remat.quantized_activations`: bytes as priced, errors within a step, right
on average."""

from __future__ import annotations

import pytest
import torch

from costmodel.operators.activation_compression import element_bytes
from runtime.remat.quantized_activations import packed

BITS = (1, 2, 4, 8, 16)


def values(count: int = 2048) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(count)


@pytest.mark.parametrize("bits", BITS)
def test_bytes_are_those_that_are_priced(bits: int) -> None:
    flat = values()
    assert packed(flat, bits).size_bytes == flat.numel() * element_bytes(bits)


@pytest.mark.parametrize("bits", BITS[:-1])
def test_what_comes_back_is_a_step_away_at_most(bits: int) -> None:
    flat = values(1000)  # the last group is not full
    back = packed(flat, bits).back()
    assert back.shape == flat.shape
    step = (flat.max() - flat.min()) / (2**bits - 1)
    assert (back - flat).abs().max() <= 1.05 * step


@pytest.mark.parametrize("bits", BITS[:-1])
def test_the_mean_of_many_is_the_tensor(bits: int) -> None:
    flat = values(256)
    mean = torch.stack([packed(flat, bits).back() for _ in range(600)]).mean(0)
    step = (flat.max() - flat.min()) / (2**bits - 1)
    # At the ends of the range what is kept of it is rounded to 8 bits.
    assert (mean - flat).abs().mean() < 0.03 * step + 0.01


def test_equal_elements_come_back_as_near_as_16_bits_are() -> None:
    flat = torch.full((300,), 1.5)
    for bits in BITS:
        torch.testing.assert_close(packed(flat, bits).back(), flat)


def test_numbers_of_16_bits_come_back_as_such() -> None:
    flat = values(256).bfloat16()
    assert packed(flat, 8).back().dtype is torch.bfloat16
    torch.testing.assert_close(packed(flat, 16).back(), flat)
