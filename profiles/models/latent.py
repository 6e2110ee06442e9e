"""Multi-head latent attention as operators (DeepSeek-V2, 2024, section 2.1).

Queries, and keys with values, come up from narrow latents; a part of each head turns
with its position, and its key is one for all heads. Training makes every head's keys
and values, so the core is attention with as many key-value heads as heads.
"""

from __future__ import annotations

from profiles.models.spec import DecoderSpec, MlaSpec
from profiles.models.steps import norm_step
from profiles.operators import Kind, Operator, Tensor

TURNED = "latent_query+latent_key+value"  # what goes into the core
_ROWS = ("batch", "sequence")


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
    operators, query = _query(spec, mla, norm)
    low = Tensor(name="kv_down_out", dims=(*_ROWS, "kv_rank+rope"))
    narrow = Tensor(name="kv_norm_out", dims=(*_ROWS, "kv_rank"))
    wide = Tensor(name="kv_up_out", dims=(*_ROWS, "latent_key_value"))
    turned = Tensor(name="rotary_out", dims=(*_ROWS, TURNED))
    core = Tensor(name="attention_out", dims=(*_ROWS, "value"))
    return [
        *operators,
        _product("kv_down", norm, low, ("kv_rank", "rope"), "hidden"),
        norm_step(spec, "kv_norm", low, narrow, "kv_rank"),
        _product("kv_up", narrow, wide, ("latent_key_value",), "kv_rank"),
        Operator(
            name="rotary",
            kind=Kind.ELEMENTWISE,
            function="latent-rotary",
            inputs=(query, wide, low),
            output=turned,
            forward_elements=2,
            backward_elements=2,
            kernels=3,
        ),
        Operator(
            name="attention",
            kind=Kind.ATTENTION,
            function="attention",
            inputs=(turned,),
            output=core,
            saves=(turned,),
        ),
        _product("projection", core, projected, ("hidden",), "value"),
    ]


def _query(
    spec: DecoderSpec, mla: MlaSpec, norm: Tensor
) -> tuple[list[Operator], Tensor]:
    """The queries' products: through a latent, or straight."""
    query = Tensor(name="q_up_out", dims=(*_ROWS, "latent_query"))
    if mla.query_rank is None:
        return [_product("q_up", norm, query, ("latent_query",), "hidden")], query
    low = Tensor(name="q_down_out", dims=(*_ROWS, "query_rank"))
    narrow = Tensor(name="q_norm_out", dims=(*_ROWS, "query_rank"))
    operators = [
        _product("q_down", norm, low, ("query_rank",), "hidden"),
        norm_step(spec, "q_norm", low, narrow, "query_rank"),
        _product("q_up", narrow, query, ("latent_query",), "query_rank"),
    ]
    return operators, query


def _product(
    name: str, source: Tensor, output: Tensor, columns: tuple[str, ...], over: str
) -> Operator:
    return Operator(
        name=name,
        kind=Kind.MATMUL,
        function="matmul",
        inputs=(source,),
        output=output,
        columns=columns,
        contracted=over,
        saves=(source,),
    )
