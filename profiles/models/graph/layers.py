"""Steps that layers of all families are made of: products, norms, residuals, MLPs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from profiles.models.graph.operator import Element, Kind, Operator, Tensor

ROWS = ("batch", "sequence")


class Style(Protocol):
    """What a spec says of how its layers' steps are made."""

    @property
    def norm(self) -> str: ...  # layernorm or rmsnorm
    @property
    def norm_bias(self) -> bool: ...  # of a layernorm
    @property
    def gated_mlp(self) -> bool: ...
    @property
    def activation(self) -> str: ...
    @property
    def mlp_bias(self) -> bool: ...
    @property
    def dropout(self) -> float: ...


STREAM = (*ROWS, "hidden")


def stream(name: str) -> Tensor:
    """A tensor as wide as what layers hand on."""
    return Tensor(name=name, dims=STREAM)


def product(
    name: str,
    sources: tuple[Tensor, ...],
    output: Tensor,
    columns: tuple[str, ...],
    contracted: str,
    *,
    bias: bool = False,
    kind: Kind = Kind.MATMUL,
) -> Operator:
    """A matrix product with a weight, which keeps what it multiplies."""
    return Operator(
        name=name,
        kind=kind,
        function=kind.value,
        inputs=sources,
        output=output,
        columns=columns,
        contracted=contracted,
        bias=bias,
        saves=sources,
    )


def norm_step(
    spec: Style, name: str, source: Tensor, output: Tensor, width: str = "hidden"
) -> Operator:
    """The model's kind of norm, over *width*."""
    return Operator(
        name=name,
        kind=Kind.ELEMENTWISE,
        function=spec.norm,
        inputs=(source,),
        output=output,
        vectors=2 if spec.norm == "layernorm" and spec.norm_bias else 1,
        vector_dim=width,
        saves=(source,),
        forward_elements=2,  # read x, write y
        backward_elements=3,  # read x and dy, write dx
    )


def residual_step(spec: Style, name: str, branch: Tensor, skip: Tensor) -> Operator:
    """*branch* added to *skip*, with dropout where the model has it."""
    mask = Tensor(name=f"{name}_mask", dims=STREAM, element=Element.MASK, internal=True)
    dropout = spec.dropout > 0
    return Operator(
        name=name,
        kind=Kind.ELEMENTWISE,
        function="dropout-residual" if dropout else "residual",
        inputs=(branch, skip),
        output=stream(f"{name}_out"),
        saves=(mask,) if dropout else (),
        forward_elements=3.5 if dropout else 3,  # branch, skip, sum and its mask
        backward_elements=2.5 if dropout else 1,
    )


def rotary_step(
    function: str, inputs: tuple[Tensor, ...], dims: tuple[str, ...], kernels: int
) -> Operator:
    """Queries and keys turned with their positions."""
    return Operator(
        name="rotary",
        kind=Kind.ELEMENTWISE,
        function=function,
        inputs=inputs,
        output=Tensor(name="rotary_out", dims=dims),
        forward_elements=2,
        backward_elements=2,
        kernels=kernels,
    )


def attention_core(
    source: Tensor, width: str, sinks: bool = False, *, causal: bool = True
) -> Operator:
    """Softmax of the scores, times values; *width* is that of all heads' values."""
    return Operator(
        name="attention",
        kind=Kind.ATTENTION,
        function="attention",
        inputs=(source,),
        output=Tensor(name="attention_out", dims=(*ROWS, width)),
        vectors=1 if sinks else 0,
        vector_dim="heads" if sinks else "hidden",
        saves=(source,),  # and, by kernel, scores or row statistics
        causal=causal,
    )


def activation_function(spec: Style) -> str:
    """The function between the two products of the MLP: gated ones have own names."""
    gated = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}
    return (
        gated.get(spec.activation, spec.activation)
        if spec.gated_mlp
        else spec.activation
    )


def mlp_steps(
    spec: Style,
    source: Tensor,
    width: str = "ffn",
    *,
    name: str = "mlp",
    kind: Kind = Kind.MATMUL,
    outer: str = "hidden",
) -> list[Operator]:
    """Up, activation and down over the rows of *source*, each *width* wide inside and
    *outer* outside."""
    rows, copies = source.dims[:-1], 2 if spec.gated_mlp else 1
    prefix = "" if name == "mlp" else f"{name}_"
    up = Tensor(name=f"{name}_up_out", dims=(*rows, width), copies=copies)
    active = Tensor(name=f"{prefix}activation_out", dims=(*rows, width))
    down = Tensor(name=f"{name}_down_out", dims=(*rows, outer))
    bias, columns = spec.mlp_bias, (width,) * copies
    function = activation_function(spec)
    return [
        product(f"{name}_up", (source,), up, columns, outer, bias=bias, kind=kind),
        Operator(
            name=f"{prefix}activation",
            kind=Kind.ELEMENTWISE,
            function=function,
            inputs=(up,),
            output=active,
            saves=(active if function == "relu" else up,),  # of which its gradient is
            forward_elements=copies + 1,
            backward_elements=2 * copies + 1,
        ),
        product(f"{name}_down", (active,), down, (outer,), width, bias=bias, kind=kind),
    ]


def lookup(
    name: str,
    contracted: str,
    source: Tensor | None = None,
    width: str = "hidden",
    saves: tuple[Tensor, ...] = (),
) -> Operator:
    """Rows of a table of *contracted* rows, or those added to what *source* has."""
    first = source is None
    return Operator(
        name=name,
        kind=Kind.EMBEDDING,
        function="lookup" if first else "positions",
        inputs=() if source is None else (source,),
        output=Tensor(name=f"{name}_out", dims=(*ROWS, width)),
        columns=(width,),
        contracted=contracted,
        saves=saves,
        forward_elements=2 if first else 3,
        backward_elements=3 if first else 2,
    )


def logits_and_loss(
    entry: Tensor, width: str = "hidden", *, columns: str = "vocab", bias: bool = False
) -> list[Operator]:
    """The product with the vocabulary, or with *columns*, and the cross-entropy."""
    logits = Tensor(name="logits_out", dims=(*ROWS, columns))
    return [
        product("logits", (entry,), logits, (columns,), width, bias=bias),
        cross_entropy("loss", logits),
    ]


def cross_entropy(name: str, logits: Tensor) -> Operator:
    """The loss of *logits*, whose softmax is kept in fp32."""
    softmax = Tensor(
        name="softmax" if name == "loss" else f"{name}_softmax",
        dims=logits.dims,
        element=Element.FP32,
        internal=True,
    )
    return Operator(
        name=name,
        kind=Kind.CROSS_ENTROPY,
        function="cross-entropy",
        inputs=(logits,),
        output=Tensor(name=f"{name}_out", dims=ROWS, element=Element.FP32),
        saves=(softmax,),
        forward_elements=8,
        backward_elements=5,
        kernels=8,
    )


def at_rows(
    operators: Iterable[Operator], share: float, given: tuple[Tensor, ...] = ()
) -> list[Operator]:
    """*operators* with a *share* of the rows, but for tensors that are *given*."""
    names = {one.name for one in given}

    def scaled(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(
            one if one.name in names else replace(one, copies=one.copies * share)
            for one in tensors
        )

    return [
        replace(
            one,
            rows=one.rows * share,
            keys=one.keys if one.keys is None else one.keys * share,
            inputs=scaled(one.inputs),
            output=scaled((one.output,))[0],
            saves=scaled(one.saves),
        )
        for one in operators
    ]
