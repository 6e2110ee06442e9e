"""Products whose backward may be taken in two parts.

    input's gradient  g w              I
    weight's gradient gᵀ x             W

In an I, the backward of a product (`linear`, and tensor parallelism's columns) sends
the gradient of its input on and puts the gradient of its weight off: what that is made
of, the input and the gradient of the output, stays until W. All else of the graph goes
with I, and parameters that are in no product (norms, tables) get their gradients there.
That is what `costmodel.stages.block_cost` prices as `weight_s` and `weight_bytes` (Qi
et al., ICLR 2024, table 1), and no part of the graph is walked twice.

W gives its gradients to autograd at the weight's own place in the graph, so that hooks,
casts and DTensors see what they would in a whole backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from runtime.models.precision import autocast
from runtime.models.products import (
    AS_GIVEN,
    Counts,
    Gradients,
    Product,
    stack_gradients,
    stack_of_bias,
    stack_output,
)

Work = Callable[[], None]


class Deferred:
    """Weight gradients that the I of one stage defers to W; `on` during such passes."""

    def __init__(self) -> None:
        self.on = False
        self._put_off: list[Work] = []

    @contextmanager
    def splitting(self, on: bool = True) -> Iterator[None]:
        """Around the forward and the I of a pass whose backward is split."""
        before, self.on = self.on, on
        try:
            yield
        finally:
            self.on = before

    def forget(self) -> None:
        """Before a step: what a failed one left."""
        self._put_off = []

    def taken(self) -> list[Work]:
        """What has been put off since it was last asked: a W's work."""
        found, self._put_off = self._put_off, []
        return found

    def add(self, work: Work) -> None:
        self._put_off.append(work)


class Deferral:
    """Hands gradients of *weights* to autograd in W; products use `values` instead."""

    def __init__(self, later: Deferred, weights: Sequence[Tensor | None]) -> None:
        self._later = later
        self._edges = [_edge(weight) for weight in weights]
        self.values = [None if one is None else one.detach() for one in weights]

    def until_w(self, make: Callable[[], Sequence[Tensor | None]]) -> None:
        """W calls *make* for the gradients, one a weight, and hands them to autograd;
        a weight that is not trained has none."""
        edges = self._edges

        def work() -> None:
            with torch.no_grad():
                made = make()
            pairs = [
                (edge, gradient)
                for edge, gradient in zip(edges, made, strict=True)
                if edge is not None and gradient is not None
            ]
            torch.autograd.backward(
                tuple(edge for edge, _ in pairs),
                tuple(gradient for _, gradient in pairs),
            )

        self._later.add(work)


def defer_weight_grads(module: nn.Module) -> Deferred:
    """Let the products of *module* defer their weights' gradients, where `on`.

    Those are plain linear layers and whatever has an attribute `later` for it.
    """
    later = Deferred()
    for part in module.modules():
        if type(part) is nn.Linear:
            product = getattr(part, "product", AS_GIVEN)
            part.forward = partial(_forward, part, later, product)  # type: ignore[method-assign]
        elif hasattr(part, "later"):
            setattr(part, "later", later)  # noqa: B010
    return later


def multiplied_by(part: nn.Module, product: Product) -> None:
    """Let *part* multiply by *product*, if it multiplies: a plain linear layer, or
    whatever has an attribute `product` for it."""
    plain = isinstance(part, nn.Linear)
    if plain or hasattr(part, "product"):
        setattr(part, "product", product)  # noqa: B010
    if isinstance(part, nn.Linear):
        part.forward = partial(_forward, part, None, product)  # type: ignore[method-assign]


def linear(
    stream: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    later: Deferred | None,
    product: Product = AS_GIVEN,
) -> Tensor:
    """*product*, whose gradient of weight and bias *later* may put off."""
    if later is None or not later.on:
        return product(stream, weight, bias)
    stream, weight, bias = autocast(stream, weight, bias)
    given = Deferral(later, (weight, bias))
    # An input that is trained: the function is part of the graph though its other ones
    # may need no gradient.
    anchor = torch.empty(0, requires_grad=True)
    return _Linear.apply(anchor, stream, given, product)  # type: ignore[no-any-return, no-untyped-call]


def stacked(
    rows: Tensor,
    counts: Counts,
    weight: Tensor,
    bias: Tensor | None,
    later: Deferred | None,
    product: Product = AS_GIVEN,
) -> Tensor:
    """*product* of each expert's rows (rows, in) with its weight (experts, out, in);
    *later* may put the gradients of the whole stack off."""
    rows, weight, bias = autocast(rows, weight, bias)
    if later is None or not later.on:
        return _Stacked.apply(None, rows, weight, bias, counts, None, product)  # type: ignore[no-any-return, no-untyped-call]
    given = Deferral(later, (weight, bias))
    anchor = torch.empty(0, requires_grad=True)  # as in `linear`
    return _Stacked.apply(anchor, rows, *given.values, counts, given, product)  # type: ignore[no-any-return, no-untyped-call]


def _forward(
    module: nn.Linear, later: Deferred | None, product: Product, stream: Tensor
) -> Tensor:
    return linear(stream, module.weight, module.bias, later, product)


def _edge(weight: Tensor | None) -> GradientEdge | None:
    if weight is None or not weight.requires_grad:
        return None
    return get_gradient_edge(weight)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, stream: Tensor, given: Deferral, product: Product
    ) -> Tensor:
        weight, bias = given.values
        assert weight is not None
        ctx.save_for_backward(stream, weight)
        ctx.given, ctx.product, ctx.biased = given, product, bias is not None
        return product.output(stream, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (made,) = gradients
        stream, weight = ctx.saved_tensors
        product, biased = ctx.product, ctx.biased

        def make() -> Sequence[Tensor | None]:
            of_bias = made.flatten(0, -2).sum(0) if biased else None
            return product.to_weight(made, stream), of_bias

        ctx.given.until_w(make)
        wanted = ctx.needs_input_grad[1]
        return None, product.to_input(made, weight) if wanted else None, None, None


class _Stacked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor | None,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        counts: Counts,
        given: Deferral | None,
        product: Product,
    ) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.counts, ctx.given, ctx.product = counts, given, product
        ctx.biased = bias is not None
        return stack_output(product, rows, counts, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (made,) = gradients
        rows, weight = ctx.saved_tensors
        counts, product = ctx.counts, ctx.product
        given, biased = ctx.given, ctx.biased
        _, of_rows, of_weight, of_bias, *_ = ctx.needs_input_grad

        def both(*wanted: bool) -> Gradients:
            of_input, of_stack = wanted
            return stack_gradients(
                product, made, rows, counts, weight, (of_input, of_stack)
            )

        def bias_gradient() -> Tensor:
            return stack_of_bias(product, made, rows, counts, weight)

        if given is None:
            found = both(of_rows, of_weight)
            of_biases = bias_gradient() if of_bias else None
            return None, *found, of_biases, None, None, None

        def make() -> Sequence[Tensor | None]:
            return both(False, True)[1], bias_gradient() if biased else None

        given.until_w(make)
        return None, both(of_rows, False)[0], None, None, None, None, None
