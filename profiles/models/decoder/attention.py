"""Multi-head latent attention as operators (DeepSeek-V2, 2024, section 2.1).

Queries, and keys with values, come up from narrow latents; a part of each head turns
with its position, and its key is one for all heads. Training makes every head's keys
and values, so the core is attention with as many key-value heads as heads.

Attention and MLP side by side (Wang and Komatsuzaki, GPT-J; Chowdhery et al., PaLM):

    y = x + attention(norm(x)) + mlp(norm(x))

One norm; their first products are one, and so are their last, whose sum over the ranks
of a tensor-parallel group is one too (PaLM, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from profiles.errors import Unsupported
from profiles.models.graph import (
    ROWS,
    Operator,
    Tensor,
    attention_core,
    norm_step,
    product,
    residual_step,
    rotary_step,
    stream,
)
from profiles.models.spec import DecoderSpec, MlaSpec

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
    wide = Tensor(name="side_by_side_in", dims=(*ROWS, "+".join(columns)))
    inner = [_reading(one, qkv.output, wide) for one in middle]
    active = _reading(activation, up.output, wide)
    made = (inner[-1].output, active.output)
    down = stream("side_by_side_out")
    last = product(
        "side_by_side_down", made, down, ("hidden",), LAST, bias=projection.bias
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


TURNED = "latent_query+latent_key+value"  # what goes into the core


def latent_extents(spec: DecoderSpec, mla: MlaSpec) -> dict[str, int]:
    """The dimensions that latent attention adds."""
    query = mla.nope_head_dim + mla.rope_head_dim
    return {
        "query_rank": mla.query_rank or 0,
        "kv_rank": mla.kv_rank,
        "rope": mla.rope_head_dim,
        "latent_query": spec.heads * query,
        "latent_key": spec.heads * query,
        "latent_key_value": spec.heads * (mla.nope_head_dim + mla.value_head_dim),
        "value": spec.heads * mla.value_head_dim,
    }


def mean_head_dim(mla: MlaSpec) -> int:
    """Of a head's key and its value: attention's work goes by their sum."""
    return (mla.nope_head_dim + mla.rope_head_dim + mla.value_head_dim + 1) // 2


def latent_attention(
    spec: DecoderSpec, mla: MlaSpec, norm: Tensor, projected: Tensor
) -> list[Operator]:
    """From the input norm's output *norm* to the output projection's *projected*."""
    operators = _query(spec, mla, norm)
    low = Tensor(name="kv_down_out", dims=(*ROWS, "kv_rank+rope"))
    narrow = Tensor(name="kv_norm_out", dims=(*ROWS, "kv_rank"))
    wide = Tensor(name="kv_up_out", dims=(*ROWS, "latent_key_value"))
    turned = (operators[-1].output, wide, low)
    rotary = rotary_step("latent-rotary", turned, (*ROWS, TURNED), kernels=3)
    core = attention_core(rotary.output, "value")
    return [
        *operators,
        product("kv_down", (norm,), low, ("kv_rank", "rope"), "hidden"),
        norm_step(spec, "kv_norm", low, narrow, "kv_rank"),
        product("kv_up", (narrow,), wide, ("latent_key_value",), "kv_rank"),
        rotary,
        core,
        product("projection", (core.output,), projected, ("hidden",), "value"),
    ]


def _query(spec: DecoderSpec, mla: MlaSpec, norm: Tensor) -> list[Operator]:
    """The queries' products: through a latent, or straight."""
    query = Tensor(name="q_up_out", dims=(*ROWS, "latent_query"))
    if mla.query_rank is None:
        return [product("q_up", (norm,), query, ("latent_query",), "hidden")]
    low = Tensor(name="q_down_out", dims=(*ROWS, "query_rank"))
    narrow = Tensor(name="q_norm_out", dims=(*ROWS, "query_rank"))
    return [
        product("q_down", (norm,), low, ("query_rank",), "hidden"),
        norm_step(spec, "q_norm", low, narrow, "query_rank"),
        product("q_up", (narrow,), query, ("latent_query",), "query_rank"),
    ]
