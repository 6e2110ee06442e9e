"""Attention and MLP side by side (Wang and Komatsuzaki, GPT-J; Chowdhery et al., PaLM):

    y = x + attention(norm(x)) + mlp(norm(x))

One norm; their first products are one, and so are their last, whose sum over the ranks
of a tensor-parallel group is one too (PaLM, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from profiles.errors import Unsupported
from profiles.models.spec import DecoderSpec
from profiles.models.steps import residual_step, stream
from profiles.operators import Kind, Operator, Tensor

LAST = "query+ffn"


def require_fusible(spec: DecoderSpec, name: str) -> None:
    """Raise Unsupported for blocks whose two halves are not products alike."""
    biases = {spec.attention_bias, spec.output_bias, spec.mlp_bias}
    if spec.moe is None and spec.mla is None and len(biases) == 1:
        return
    raise Unsupported(
        f"{name} has attention and MLP side by side with experts, latent attention or "
        "biases of some products, which is not priced yet; with biases on all of them, "
        "or on none, it is"
    )


def beside_extents(spec: DecoderSpec) -> dict[str, int]:
    """What the last product sums over: all heads, and the width of the MLP."""
    return {LAST: spec.heads * spec.head_dim + spec.ffn_hidden}


def side_by_side(
    spec: DecoderSpec,
    entry: Tensor,
    attention: Sequence[Operator],
    mlp: Sequence[Operator],
) -> list[Operator]:
    """The operators of *attention*, from its norm to its projection, and of *mlp*, as
    one block."""
    norm, qkv, *middle, projection = attention
    up, activation, _ = mlp
    columns = (*qkv.columns, *up.columns)
    wide = Tensor(name="side_by_side_in", dims=("batch", "sequence", "+".join(columns)))
    inner = [_reading(one, qkv.output, wide) for one in middle]
    active = _reading(activation, up.output, wide)
    made = (inner[-1].output, active.output)
    last = Operator(
        name="side_by_side_down",
        kind=Kind.MATMUL,
        function="matmul",
        inputs=made,
        output=stream("side_by_side_out"),
        columns=("hidden",),
        contracted=LAST,
        bias=projection.bias,
        saves=made,
    )
    return [
        norm,
        replace(qkv, name="side_by_side_up", output=wide, columns=columns),
        *inner,
        active,
        last,
        residual_step(spec, "residual", last.output, entry),
    ]


def _reading(operator: Operator, before: Tensor, now: Tensor) -> Operator:
    """*operator*, reading and keeping *now* where it did *before*."""

    def instead(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(now if one == before else one for one in tensors)

    return replace(
        operator, inputs=instead(operator.inputs), saves=instead(operator.saves)
    )
