"""`runtime.models.split_backward`: an I and its W together are one whole backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from runtime.models.products import Counts
from runtime.models.split_backward import (
    Deferred,
    defer_weight_grads,
    linear,
    stacked,
)

WIDTH = 8


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, 4 * WIDTH),
        nn.GELU(),
        nn.Linear(4 * WIDTH, WIDTH, bias=False),
    )


class Recomputed(nn.Module):
    """Runs its part again in the backward."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, stream: Tensor) -> Tensor:
        made: Tensor = checkpoint(self.part, stream, use_reentrant=False)
        return made


def rows() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, WIDTH, requires_grad=True)


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def whole(make: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    module, stream = make(), rows()
    module(stream).square().sum().backward()
    assert stream.grad is not None
    return module, stream.grad


def split(
    make: Callable[[], nn.Module],
) -> Iterator[tuple[nn.Module, Tensor, Deferred]]:
    """The same, paused after I and after W."""
    module, stream = make(), rows()
    later = defer_weight_grads(module)
    with later.splitting():
        loss = module(stream).square().sum()
    with later.splitting():
        loss.backward()
    assert stream.grad is not None
    yield module, stream.grad, later
    for work in later.taken():
        work()
    yield module, stream.grad, later


KINDS = [model, lambda: Recomputed(model())]


@pytest.mark.parametrize("make", KINDS, ids=["kept", "recomputed"])
def test_w_completes_what_i_leaves(make: Callable[[], nn.Module]) -> None:
    wanted, stream_gradient = whole(make)
    passes = split(make)
    module, found, _ = next(passes)
    of_products = [one is None for one in gradients(module)]
    assert of_products == [False, False, True, True, True]
    torch.testing.assert_close(found, stream_gradient, rtol=0, atol=0)
    next(passes)
    for one, two in zip(gradients(module), gradients(wanted), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_each_parameter_is_told_of_its_gradient_once() -> None:
    told: list[nn.Parameter] = []
    module = model()
    later = defer_weight_grads(module)
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(told.append)
    for _ in range(2):
        with later.splitting():
            module(rows()).sum().backward()
        for work in later.taken():
            work()
    names = {id(one): name for name, one in module.named_parameters()}
    found = sorted(names[id(one)] for one in told)
    assert found == sorted(2 * [name for name, _ in module.named_parameters()])


def test_what_i_has_no_more_use_for_is_gone() -> None:
    module, kept = model(), []
    module[1].register_forward_hook(lambda *given: kept.append(ref(given[2])))
    later = defer_weight_grads(module)
    with later.splitting():
        loss = module(rows()).sum()
    assert kept[0]() is not None, "GELU's backward needs it"
    with later.splitting():
        loss.backward()
    assert kept[0]() is None


def test_a_whole_backward_puts_nothing_off() -> None:
    module, _ = whole(model)
    other, stream = model(), rows()
    later = defer_weight_grads(other)
    other(stream).square().sum().backward()
    assert later.taken() == []
    for one, two in zip(gradients(other), gradients(module), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_an_input_that_is_not_trained_gets_no_gradient() -> None:
    module = nn.Linear(WIDTH, 1)
    later = defer_weight_grads(module)
    stream = rows().detach()
    with later.splitting():
        module(stream).sum().backward()
    (work,) = later.taken()
    work()
    assert stream.grad is None
    torch.testing.assert_close(gradients(module)[1], torch.tensor([6.0]))


def test_a_frozen_weight_gets_none() -> None:
    module, stream, later = nn.Linear(WIDTH, 2), rows(), Deferred()
    module.weight.requires_grad_(False)
    with later.splitting():
        linear(stream, module.weight, module.bias, later).sum().backward()
    (work,) = later.taken()
    work()
    assert module.weight.grad is None
    torch.testing.assert_close(module.bias.grad, torch.full((2,), 6.0))


def test_a_stack_of_experts_puts_all_of_its_gradients_off() -> None:
    """Also of an expert that has no rows."""

    def made(*, splitting: bool) -> Iterator[list[Tensor | None]]:
        torch.manual_seed(2)
        weight = torch.randn(3, 4, WIDTH, requires_grad=True)
        bias = torch.randn(3, 4, requires_grad=True)
        every = torch.randn(5, WIDTH, requires_grad=True)
        later = Deferred()
        with later.splitting(splitting):
            counts = Counts(torch.tensor([2, 0, 3]))
            stacked(every, counts, weight, bias, later).square().sum().backward()
        yield [every.grad, weight.grad, bias.grad]
        for work in later.taken():
            work()
        yield [every.grad, weight.grad, bias.grad]

    after_i, after_w = made(splitting=True)
    wanted = list(made(splitting=False))[-1]
    assert [one is None for one in after_i] == [False, True, True]
    for one, two in zip(after_w, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


def test_autocasts_products_and_their_gradients_are_those_of_a_whole_backward() -> None:
    def cast(make: Callable[[], nn.Module], *, splitting: bool) -> list[Tensor | None]:
        module, stream = make(), rows()
        later = defer_weight_grads(module)
        with later.splitting(splitting):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                made = module(stream)
            assert made.dtype is torch.bfloat16
            made.float().square().sum().backward()
        for work in later.taken():
            work()
        return gradients(module)

    pairs = zip(cast(model, splitting=True), cast(model, splitting=False), strict=True)
    for one, two in pairs:
        assert one is not None
        assert one.dtype is torch.float32
        torch.testing.assert_close(one, two, rtol=0, atol=0)
