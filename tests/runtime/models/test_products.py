"""Products of experts: one kernel for all where it fits, and the same as one each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from runtime.models.products import Counts, Product
from runtime.models.split_backward import stacked
from runtime.parallel.expert_parallel import Dispatcher
from tests.runtime.dispatches import Dispatches
from tests.runtime.models.test_experts import BIASED, GATED, mixture

EXPERTS, INWARD, OUTWARD = 4, 16, 24
COUNTS = (8, 0, 5, 16)


class OneByOne(Product):
    grouped = False


def operands(kind: torch.dtype, width: int = INWARD) -> list[Tensor]:
    torch.manual_seed(3)
    shapes = ((sum(COUNTS), width), (EXPERTS, OUTWARD, width), (EXPERTS, OUTWARD))
    return [torch.randn(shape).to(kind).requires_grad_() for shape in shapes]


def passed(
    given: list[Tensor], product: Product, *, biased: bool
) -> tuple[list[Tensor], Dispatches]:
    rows, weight, bias = given
    leaves = given if biased else given[:2]
    with Dispatches() as dispatched:
        counts = Counts(torch.tensor(COUNTS))
        made = stacked(rows, counts, weight, bias if biased else None, None, product)
        upward = torch.linspace(-1, 1, made.numel()).view_as(made).to(made.dtype)
        found = torch.autograd.grad(made, leaves, upward)
    return [made.detach(), *found], dispatched


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_one_kernel_makes_what_a_product_each_does(kind: torch.dtype) -> None:
    given = operands(kind)
    seen, dispatched = passed(given, Product(), biased=False)
    wanted, apart = passed(given, OneByOne(), biased=False)
    for one, other in zip(seen, wanted, strict=True):
        assert torch.equal(one, other)
    assert dispatched.seen["_grouped_mm"] == 3
    assert not dispatched.seen["mm"]
    assert apart.seen["mm"] == 3 * EXPERTS
    assert not bool(seen[2][1].any()), "an expert without rows has a gradient of 0"


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_biases_are_added_and_summed_without_the_host(
    kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = operands(kind)
    wanted, _ = passed(given, OneByOne(), biased=True)
    monkeypatch.setattr(Counts, "listed", property(_refused))
    seen, dispatched = passed(given, Product(), biased=True)
    for one, other in zip(seen, wanted, strict=True):
        # In 16 bits the sum is rounded before the bias comes to it.
        most = 2 * torch.finfo(kind).eps * float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=most)
    assert dispatched.seen["_grouped_mm"] == 4


def _refused(counts: Counts) -> list[int]:
    raise AssertionError("the host asked the device for counts")


@pytest.mark.parametrize(
    ("kind", "width"),
    [(torch.float32, 18), (torch.bfloat16, 12), (torch.float64, 16)],
    ids=["unaligned", "unaligned-bf16", "doubles"],
)
def test_what_does_not_fit_is_multiplied_one_by_one(
    kind: torch.dtype, width: int
) -> None:
    seen, dispatched = passed(operands(kind, width), Product(), biased=True)
    wanted, _ = passed(operands(kind, width), OneByOne(), biased=True)
    assert not dispatched.seen["_grouped_mm"]
    for one, other in zip(seen, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("number", [0, 1])
def test_few_rows_have_gradients_too(number: int) -> None:
    rows = torch.randn(number, INWARD, requires_grad=True)
    weight = torch.randn(EXPERTS, OUTWARD, INWARD, requires_grad=True)
    counts = Counts(torch.tensor([0, number, 0, 0]))
    made = stacked(rows, counts, weight, None, None)
    of_rows, of_weight = torch.autograd.grad(made.sum(), (rows, weight))
    assert made.shape == (number, OUTWARD)
    torch.testing.assert_close(of_rows, weight[1].sum(0).expand_as(rows))
    torch.testing.assert_close(of_weight[1], rows.sum(0).expand_as(weight[1]))
    assert not of_weight[[0, 2, 3]].any()


@pytest.mark.parametrize("of_upward", ["expanded", "turned", "unaligned"])
def test_gradients_may_lie_anywhere(of_upward: str) -> None:
    rows, weight, bias = given = operands(torch.float32)
    shape, counts = (sum(COUNTS), OUTWARD), Counts(torch.tensor(COUNTS))
    upward = {
        "expanded": torch.ones(()).expand(shape),
        "turned": torch.randn(shape[::-1]).t(),
        "unaligned": torch.randn(shape[0] * shape[1] + 1)[1:].view(shape),
    }[of_upward]
    made = [
        torch.autograd.grad(
            stacked(rows, counts, weight, bias, None, product),
            given,
            upward,
        )
        for product in (Product(), OneByOne())
    ]
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("of", ["gated", "biased"])
def test_a_mixture_whose_experts_are_all_here_asks_the_device_nothing(
    of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the gradient of a row that has one place add anything up."""
    monkeypatch.setattr(Counts, "listed", property(_refused))
    spec = {"gated": GATED, "biased": BIASED}[of]
    mlp = mixture(spec)
    stream = torch.randn(2, 6, spec.hidden, requires_grad=True)
    with Dispatches() as dispatched:
        mlp(stream).sum().backward()
    stacks, each = (2, 4) if spec.mlp_bias else (3, 3)
    assert dispatched.seen["_grouped_mm"] == stacks * each
    waits = {"bincount", "_local_scalar_dense", "nonzero", "item"}
    assert not waits & set(dispatched.seen)
    assert not dispatched.seen["index_add"] + dispatched.seen["index_add_"]
    assert not dispatched.seen["stack"]


def test_rows_that_travel_make_the_host_wait_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For how many to send and to receive; experts read their counts on the device."""
    mlp = mixture(GATED)
    stream = torch.randn(2, 6, GATED.hidden)
    wanted = mlp(stream)
    mlp.exchange = Dispatcher(None, None)
    waited, tolist = [], Tensor.tolist

    def counted(one: Tensor) -> Any:
        waited.append(one.shape)
        return tolist(one)

    monkeypatch.setattr(Tensor, "tolist", counted)
    with Dispatches() as dispatched:
        made = mlp(stream)
    assert torch.equal(made, wanted)
    assert len(waited) == 1
    assert not {"bincount", "_local_scalar_dense"} & set(dispatched.seen)
