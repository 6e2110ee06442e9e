"""8-bit products are as near as their roundings let them be, in every layout alike."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.simulation.estimator import estimate
from costmodel.simulation.layout_files import write_layout
from runtime.launch import run
from runtime.models.decoder import Stage, decoder_of
from runtime.models.moe import Stack
from runtime.parallel.fp8 import (
    EIGHT_BITS,
    GRADIENT,
    OPERAND,
    multiply_in_eight_bits,
    quantised,
    transposed,
)
from runtime.train.step_hooks import HEAD, TABLE
from tests.runtime.dispatches import Dispatches
from tests.runtime.ranks import on_ranks
from tests.runtime.run_options import run_options
from tests.support import sampled
from tests.support.apart import apart
from tests.support.forked_workers import forked
from tests.support.small_layouts import (
    DP2,
    FP32,
    FSDP,
    INTERLEAVED,
    SP,
    ZB_H1,
    ZERO1,
)
from tests.support.toy import figure
from tests.support.training import SGD, trained
from tests.support.training_cases import choice_of, job

# Half the last bit of a mantissa of 3 and of 2 bits, of what is no denormal.
ROUNDING = {OPERAND: 2.0**-4, GRADIENT: 2.0**-3}
# Half the smallest denormal over the least that a largest element is scaled to.
SMALLEST = {OPERAND: 2.0**-10 / 224, GRADIENT: 2.0**-17 / 28672}
OF_BF16 = 2.0**-8  # of a sum that is rounded to it
OF_FP32 = 2.0**-23  # of each addition
NEAR_BF16 = 2.0**-3  # a gradient's relative L2: no rounding is larger
ALIKE = {
    "dp2": DP2,
    "zero1": ZERO1,
    "fsdp2": FSDP,
    "pp2-interleaved": INTERLEAVED,
    "pp2-zb-h1": ZB_H1,
}


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape) * scale).bfloat16()


@pytest.mark.parametrize("number", [OPERAND, GRADIENT])
@pytest.mark.parametrize("largest", [3e-12, 0.7, 447.0, 449.0, 6e4, 1e30])
def test_scales_are_powers_of_two_just_below_the_format(
    number: torch.dtype, largest: float
) -> None:
    values = torch.tensor([[largest, -largest / 3], [0.0, largest / 1e9]]).bfloat16()
    made = quantised(values, number)
    kept = made.values[: made.rows, : made.columns].float()
    assert torch.frexp(made.back).mantissa == 0.5
    most = torch.finfo(number).max
    assert most / 2 <= kept.max() <= most
    away = (kept * made.back - values.float()).abs()
    assert (away <= error_of(values, number)).all()


def test_zeros_stay_zeros_and_what_is_no_number_is_seen() -> None:
    made = quantised(torch.zeros(2, 2).bfloat16(), OPERAND)
    assert not made.values.float().any()
    assert torch.isfinite(made.back)
    for wrong in (float("nan"), float("inf"), -float("inf")):
        values = torch.tensor([[1.0, wrong]]).bfloat16()
        for number in (OPERAND, GRADIENT):
            made = quantised(values, number)
            assert not torch.isfinite(made.values.float() * made.back).any()


@pytest.mark.parametrize("number", [OPERAND, GRADIENT])
def test_scales_are_those_of_a_division_for_every_bfloat16(number: torch.dtype) -> None:
    """The largest power of two that takes a magnitude to no more than the format's."""
    bits = torch.arange(127 - 76 << 7, 127 + 126 << 7, dtype=torch.int32)
    most = torch.finfo(number).max
    for largest in bits.to(torch.int16).view(torch.bfloat16).split(97):
        for one in largest[:2]:
            mantissa, exponent = torch.frexp(most / one.double())
            assert quantised(one.view(1, 1), number).back == 2.0 ** (1 - exponent)
            assert mantissa >= 0.5


@pytest.mark.parametrize("shape", [(16, 16), (48, 32), (0, 16)])
def test_words_and_then_their_bytes_are_transposed(shape: tuple[int, int]) -> None:
    values = torch.arange(shape[0] * shape[1], dtype=torch.int16).to(torch.uint8)
    values = values.view(shape)
    for kind in (OPERAND, GRADIENT):
        seen = transposed(values.view(kind))
        assert torch.equal(seen.view(torch.uint8), values.t())
        assert seen.is_contiguous()


def test_a_known_scale_quantises_alike() -> None:
    values = normal(32, 48)
    made = quantised(values, OPERAND)
    again = quantised(values, OPERAND, made.back)
    assert torch.equal(made.values.view(torch.uint8), again.values.view(torch.uint8))


def test_a_product_takes_few_operators() -> None:
    """Each is a kernel. Five quantise a matrix, two where the scale is known, two
    transpose it: x and w; then g, and g, x and w transposed."""
    stream, weight = normal(32, 64).requires_grad_(), normal(48, 64).requires_grad_()
    bias = normal(48).requires_grad_()
    with Dispatches() as onward:
        made = EIGHT_BITS(stream, weight, bias)
    upward = normal(32, 48)
    with Dispatches() as back:
        torch.autograd.grad(made, (stream, weight, bias), upward)
    assert onward.total == 2 * 5 + 1
    assert back.total == 5 + 2 * 2 + 3 * 2 + 2 + 1


@pytest.mark.parametrize("shape", [(32, 48, 64), (7, 5, 9)])  # the second is padded
def test_three_products_are_as_near_as_their_roundings(
    shape: tuple[int, int, int],
) -> None:
    """Element by element: |Σ q(a) q(b) − Σ a b| ≤ Σ |a| e(b) + e(a) |b| + e(a) e(b)."""
    torch.manual_seed(1)
    rows, columns, contracted = shape
    stream = normal(2, rows, contracted).requires_grad_()
    weight = normal(columns, contracted, scale=0.02).requires_grad_()
    bias = normal(columns).requires_grad_()
    made = EIGHT_BITS(stream, weight, bias)
    gradient = normal(2, rows, columns, scale=1e-6)
    of_input, of_weight, of_bias = torch.autograd.grad(
        made, (stream, weight, bias), gradient
    )
    x, w, g = (one.detach().flatten(0, -2) for one in (stream, weight, gradient))
    within(made.flatten(0, -2), (x, OPERAND), (w, OPERAND), bias.detach())
    within(of_input.flatten(0, -2), (g, GRADIENT), (w.t(), OPERAND))
    within(of_weight, (g.t(), GRADIENT), (x.t(), OPERAND))
    assert torch.equal(of_bias, g.sum(0))


def within(
    seen: Tensor,
    one: tuple[Tensor, torch.dtype],
    other: tuple[Tensor, torch.dtype],
    bias: Tensor | None = None,
) -> None:
    (a, ea), (b, eb) = ((v.double(), error_of(v, number)) for v, number in (one, other))
    product = a @ b.t()
    true = product + (0 if bias is None else bias.double())
    sums = (a.abs() + ea) @ (b.abs() + eb).t()
    rounded = sums - a.abs() @ b.abs().t()
    summed = a.shape[1] * OF_FP32 * sums + OF_BF16 * (true.abs() + rounded)
    away = (seen.detach().double() - true).abs()
    assert (away <= rounded + summed).all()
    assert away.norm() > OF_BF16 * product.norm()  # products of 16 bits are nearer


def error_of(values: Tensor, number: torch.dtype) -> Tensor:
    """The most that each of *values* is rounded by."""
    size = values.double().abs()
    return torch.maximum(size * ROUNDING[number], size.max() * SMALLEST[number])


def test_no_rows_have_no_products() -> None:
    """As of an expert that nobody chose."""
    stream, weight = normal(0, 16).requires_grad_(), normal(32, 16).requires_grad_()
    made = EIGHT_BITS(stream, weight, None)
    of_input, of_weight = torch.autograd.grad(made.sum(), (stream, weight))
    assert (made.shape, of_input.shape) == ((0, 32), (0, 16))
    assert not of_weight.any()


def test_layers_multiply_in_eight_bits_and_nothing_else() -> None:
    asked = job("mixtral")
    stage = Stage(decoder_of(asked), asked.graph.layer_names)
    for layer in stage.layers.values():
        multiply_in_eight_bits(layer)
    wide = {
        name.split(".", 2)[-1]
        for name, part in stage.named_modules()
        if isinstance(part, nn.Linear | Stack)
        and getattr(part, "product", None) is not EIGHT_BITS
    }
    assert wide == {"mlp.router.linear", "head"}


def test_it_trains_as_bf16_does() -> None:
    (seen,) = on_ranks(1, alone, ("full",))
    plain, narrow = seen["bf16"], seen["fp8"]
    assert narrow["losses"][0] > narrow["losses"][-1]
    assert narrow["losses"] == pytest.approx(plain["losses"], rel=NEAR_BF16**3)
    assert OF_BF16 < apart(narrow["gradients"], plain["gradients"]) < NEAR_BF16
    assert seen["full"]["losses"] == narrow["losses"]
    for rank in on_ranks(2, alike, ("fsdp2", "pp2-zb-h1")):
        for name, one in rank.items():
            _require_same(one, narrow, name)


@pytest.mark.matrix
def test_layouts_train_as_one_process_does() -> None:
    again = ("selective", "input_norm,mlp_up,activation")
    (seen,) = on_ranks(1, alone, again)
    narrow = seen["fp8"]
    for name in again:
        assert seen[name]["losses"] == narrow["losses"], name
    (compiled,) = on_ranks(1, between_graphs)
    assert compiled == pytest.approx(narrow["losses"], rel=NEAR_BF16**4)
    for rank in on_ranks(2, alike, tuple(ALIKE)):
        for name, one in rank.items():
            _require_same(one, narrow, name)
    for rank in on_ranks(2, near):
        for name, one in rank["fp8"].items():
            plain = rank["bf16"][name]
            most = NEAR_BF16**3
            assert one["losses"] == pytest.approx(plain["losses"], rel=most), name
            away = apart(one["gradients"], plain["gradients"])
            assert OF_BF16 < away < NEAR_BF16, name


def _require_same(seen: dict[str, Any], wanted: dict[str, Any], name: str) -> None:
    """The first gradients: its products were those of one process, quantised alike."""
    for tensor, made in seen["gradients"].items():
        # Two stages' summands of the table's gradient are each rounded to bf16.
        of_table = tensor in (TABLE, HEAD)
        most = OF_BF16 if of_table else 1e-6
        known = wanted["gradients"][TABLE if of_table else tensor]
        assert (made - known).norm() <= most * known.norm(), (name, tensor)


def eight(choice: Uniform) -> Uniform:
    return replace(choice, precision="fp8")


def alone(rank: int, again: tuple[str, ...]) -> dict[str, Any]:
    choices = {"none": FP32, **{name: replace(FP32, recompute=name) for name in again}}
    found = {name: trained("gpt", eight(one), SGD) for name, one in choices.items()}
    plain = trained("gpt", replace(FP32, precision="bf16"), SGD)
    return {**found, "fp8": found["none"], "bf16": plain}


def between_graphs(rank: int) -> Any:
    return trained("gpt", eight(FP32), SGD, compiled=True)["losses"]


def alike(rank: int, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: trained("gpt", eight(ALIKE[name]), SGD) for name in names}


def near(rank: int) -> dict[str, dict[str, Any]]:
    """Layouts whose products are others than one process's, in fp8 and in bf16."""
    cases = {
        "tp2-sp": ("gpt", SP),
        "dp2-ep2": ("mixtral", choice_of("mixtral", "dp2-ep2")),
        "tp2-etp2": ("mixtral", choice_of("mixtral", "tp2-etp2")),
    }
    return {
        number: {
            name: trained(family, replace(one, precision=number), SGD)
            for name, (family, one) in cases.items()
        }
        for number in ("fp8", "bf16")
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", ["bf16", "fp8"])
def test_execute_holds_what_is_priced(tmp_path: Path, number: str) -> None:
    """On two gloo ranks: 16 bits are kept, and operands are made beside them."""
    asked, file = sampled.job(global_batch=4), tmp_path / "layout.json"
    choice = replace(DP2, precision=number)
    layout = spell_out(choice, asked.graph, asked.global_batch)
    write_layout(file, asked, "local", layout)
    with forked():
        seen = run.prepare(replace(run_options(file), steps=4)).execute()
    assert seen["losses"][0] > 6
    assert all(map(isfinite, seen["losses"]))
    (island,) = sampled.local(2).islands
    rate = figure(60, "GFLOP/s")
    device = replace(island.device, peak={"bf16": rate, "fp8": rate})
    where = replace(sampled.local(2), islands=(replace(island, device=device),))
    on = machine(where).running(2)
    priced = estimate(asked, where, layout, on=on).peak_allocated_bytes
    assert max(seen["peak_allocated_bytes"]) == pytest.approx(priced, rel=0.05)
