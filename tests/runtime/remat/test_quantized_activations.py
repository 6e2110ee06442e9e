"""`runtime.remat.quantized_activations`: bytes as priced, errors within a step, right
on average."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.retention import Action, Treatment
from costmodel.operators.activation_compression import element_bytes
from runtime.remat.quantized_activations import Quantizer, packed, rounded_down

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
@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_the_mean_of_a_thousand_is_the_tensor(bits: int, shift: float) -> None:
    """Every element's, the ends of the range too, whose 16 bits are rounded outwards:
    within 4 standard deviations of the mean, and all together within 3."""
    flat, draws = values(256) + shift, 1000
    found = torch.stack([packed(flat, bits).back() for _ in range(draws)]).double()
    wrong = found.mean(0) - flat.double()
    deviation = found.std(0) / draws**0.5
    ulp = flat.abs().max().item() * 2**-22
    step = (flat.max() - flat.min()).item() / (2**bits - 1)
    rare = 5 * step / draws  # one rounding in a thousand may never have come
    assert (wrong.abs() <= 4 * deviation + rare + ulp).all()
    assert wrong.sum().abs() <= 3 * deviation.norm() + 256 * ulp


@given(st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False))
def test_a_minimum_is_rounded_down_to_the_next_of_16_bits(value: float) -> None:
    below = float(rounded_down(torch.tensor([value])))
    assert torch.tensor(below).bfloat16().item() == below
    nearest = float(torch.tensor(value).bfloat16())
    assert below <= value
    assert abs(below - value) <= max(abs(value) * 2**-7, 1e-38)
    assert nearest >= below


def test_a_running_range_keeps_nothing_beside_the_codes() -> None:
    """Mesa: 8 bits of the range of the steps before, 0.9 of which stays."""
    quantizer = Quantizer()
    how = Treatment(action=Action.COMPRESS, bits=8, running=True)
    first = values(1024).view(-1, 128)
    kept = quantizer.pack("one", first.flatten(), 128, how)
    assert kept.size_bytes == 1024 * element_bytes(8, running=True) == 1024
    # two heads of 64 columns have ranges of their own
    for head in first.split(64, dim=1):
        step = (head.max() - head.min()) / 255
        columns = head.flatten()
        back = quantizer.pack(object(), columns, 64, how).back()
        assert (back - columns).abs().max() <= 1.01 * step
    later = quantizer.pack("one", 2 * first.flatten(), 128, how).back()
    assert later.max() <= first.max() * (1 + 1e-6)  # as far as the range was then
    third = quantizer.pack("one", 2 * first.flatten(), 128, how).back()
    torch.testing.assert_close(
        third.view(-1, 128)[:, :64].max(), (0.9 + 0.1 * 2) * first[:, :64].max()
    )


def test_equal_elements_come_back_as_near_as_16_bits_are() -> None:
    flat = torch.full((300,), 1.5)
    for bits in BITS:
        torch.testing.assert_close(packed(flat, bits).back(), flat)


def test_numbers_of_16_bits_come_back_as_such() -> None:
    flat = values(256).bfloat16()
    assert packed(flat, 8).back().dtype is torch.bfloat16
    torch.testing.assert_close(packed(flat, 16).back(), flat)
