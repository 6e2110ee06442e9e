"""What transformers of all families have: their widths, and the halves of a layer."""

from __future__ import annotations

from typing import Protocol

from profiles.models.graph import (
    ROWS,
    STREAM,
    Element,
    Kind,
    Operator,
    Style,
    Tensor,
    attention_core,
    mlp_steps,
    norm_step,
    product,
    residual_step,
    stream,
)


class Shape(Style, Protocol):
    """Besides, how wide a transformer is."""

    @property
    def hidden(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def ffn_hidden(self) -> int: ...


def widths(spec: Shape, **more: int) -> dict[str, int]:
    """The dimensions of a layer, and *more*."""
    return {
        "hidden": spec.hidden,
        "query": spec.heads * spec.head_dim,
        "key_value": 2 * spec.kv_heads * spec.head_dim,
        "heads": spec.heads,
        "head_dim": spec.head_dim,
        "ffn": spec.ffn_hidden,
        **more,
    }


def attention_steps(
    source: Tensor, *, bias: bool, causal: bool = False
) -> list[Operator]:
    """Queries, keys and values of *source*, the core, and the projection."""
    columns = ("query", "key_value")
    qkv = Tensor(name="qkv_out", dims=(*ROWS, "+".join(columns)))
    core = attention_core(qkv, "query", causal=causal)
    out = stream("projection_out")
    return [
        product("qkv", (source,), qkv, columns, "hidden", bias=bias),
        core,
        product("projection", (core.output,), out, ("hidden",), "query", bias=bias),
    ]


def pre_norm_layer(
    spec: Shape, entry: Tensor, *, bias: bool, causal: bool = False
) -> list[Operator]:
    """x + attention(norm(x)), then x + mlp(norm(x)): T5, ViT, CLIP."""
    norm, second = stream("input_norm_out"), stream("mlp_norm_out")
    attention = attention_steps(norm, bias=bias, causal=causal)
    mixed = residual_step(spec, "attention_residual", attention[-1].output, entry)
    return [
        norm_step(spec, "input_norm", entry, norm),
        *attention,
        mixed,
        *mlp_half(spec, mixed.output, second),
    ]


def mlp_half(spec: Style, entry: Tensor, norm: Tensor) -> list[Operator]:
    """*entry* + mlp(norm(*entry*))."""
    steps = mlp_steps(spec, norm)
    return [
        norm_step(spec, "mlp_norm", entry, norm),
        *steps,
        residual_step(spec, "mlp_residual", steps[-1].output, entry),
    ]


def post_norm_layer(spec: Shape, entry: Tensor, *, bias: bool) -> list[Operator]:
    """norm(x + attention(x)), then norm(x + mlp(x)): BERT."""
    attention = attention_steps(entry, bias=bias)
    mixed = residual_step(spec, "attention_residual", attention[-1].output, entry)
    norm = norm_step(spec, "attention_norm", mixed.output, stream("attention_norm_out"))
    steps = mlp_steps(spec, norm.output)
    added = residual_step(spec, "mlp_residual", steps[-1].output, norm.output)
    last = norm_step(spec, "mlp_norm", added.output, stream("mlp_norm_out"))
    return [*attention, mixed, norm, *steps, added, last]


def dropout_step(name: str, source: Tensor, share: float) -> list[Operator]:
    """*source* with a *share* of it dropped; nothing where none is."""
    if not share:
        return []
    mask = Tensor(name=f"{name}_mask", dims=STREAM, element=Element.MASK, internal=True)
    dropped = Operator(
        name=name,
        kind=Kind.ELEMENTWISE,
        function="dropout",
        inputs=(source,),
        output=Tensor(name=f"{name}_out", dims=source.dims),
        saves=(mask,),
        forward_elements=2.5,
        backward_elements=2.5,
    )
    return [dropped]


def activation_step(function: str, name: str, source: Tensor) -> Operator:
    """A *function* of *source*, element by element."""
    return Operator(
        name=name,
        kind=Kind.ELEMENTWISE,
        function=function,
        inputs=(source,),
        output=Tensor(name=f"{name}_out", dims=source.dims, copies=source.copies),
        saves=(source,),
        forward_elements=2,
        backward_elements=3,
    )
