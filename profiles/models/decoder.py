"""Decoder-only transformers as operator graphs: GPT, Llama, Mixtral, DeepSeek, Qwen.

A layer has dense attention or a latent one, an MLP or experts, and may look through a
window: each combination that a model has is a block of its own. What the operators of a
GPT with dropout save for backward in 16 bits reproduces Korthikanti et al. (MLSys 2023,
section 4.1): 34·s·b·h + 5·a·s²·b bytes a layer.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby

from profiles.models.attention import (
    beside_extents,
    latent_attention,
    latent_extents,
    mean_head_dim,
    require_fusible,
    side_by_side,
)
from profiles.models.graph import (
    PRODUCTS,
    Block,
    Element,
    Kind,
    ModelGraph,
    Operator,
    Tensor,
)
from profiles.models.head import (
    STREAM,
    logits_and_loss,
    norm_step,
    prediction,
    residual_step,
    stream,
)
from profiles.models.moe import expert_extents, expert_mlp
from profiles.models.spec import DecoderSpec


def decoder_graph(spec: DecoderSpec, name: str = "decoder") -> ModelGraph:
    """The operator graph of a decoder; its body's blocks are called by `layer_kind`.

    Raises Unsupported for what is described but not priced yet.
    """
    if spec.parallel_block:
        require_fusible(spec, name)
    kinds = [layer_kind(spec, number) for number in range(spec.layers)]
    layers = {kind: _layer(spec, kind) for kind in dict.fromkeys(kinds)}
    body = tuple((layers[kind], len(list(same))) for kind, same in groupby(kinds))
    tied = (
        ((("embedding", "table"), ("head", "logits")),) if spec.tied_embeddings else ()
    )
    head = _head(spec)
    ends = ((_final_norm(spec), 1), (head, 1))
    return ModelGraph(
        name=name,
        blocks=((_embedding(spec), 1), *body, *ends),
        tied=tied,
        tail=_weight(head) // _weight(body[-1][0]) if spec.multi_token_heads else 0,
    )


def layer_kind(spec: DecoderSpec, number: int) -> str:
    """Of which kind a numbered layer is: `layer`, `expert-layer`, `window-layer` …

    A model whose layers all have the same window has plain names.
    """
    experts = spec.moe is not None and spec.moe.holds(number)
    window = spec.window_every > 1 and number % spec.window_every == 0
    return ("expert-" if experts else "") + ("window-" if window else "") + "layer"


def _weight(block: Block) -> int:
    """Elements of the weights that a token meets: the work of a block, nearly."""
    return sum(
        sum(block.extents[name] for name in operator.columns)
        * block.extents[operator.contracted or ""]
        * (block.extents["routed"] if operator.kind is Kind.GROUPED_MATMUL else 1)
        for operator in block.operators
        if operator.kind in PRODUCTS
    )


def _extents(spec: DecoderSpec) -> dict[str, int]:
    return {
        "hidden": spec.hidden,
        "query": spec.heads * spec.head_dim,
        "key_value": 2 * spec.kv_heads * spec.head_dim,
        "heads": spec.heads,
        "ffn": spec.ffn_hidden,
        "vocab": spec.vocab,
        "positions": spec.max_positions,
        "head_dim": spec.head_dim,
        **(beside_extents(spec) if spec.parallel_block else {}),
        **(latent_extents(spec, spec.mla) if spec.mla else {}),
        **(expert_extents(spec.moe) if spec.moe else {}),
        **({"pair": 2 * spec.hidden} if spec.multi_token_heads else {}),
    }


def _block(
    spec: DecoderSpec, name: str, entry: Tensor | None, *operators: Operator
) -> Block:
    whole = spec.window_every > 1 and "window-" not in name
    return Block(
        name=name,
        operators=operators,
        extents=_extents(spec),
        entry=entry,
        heads=spec.heads,
        kv_heads=spec.heads if spec.mla else spec.kv_heads,
        head_dim=mean_head_dim(spec.mla) if spec.mla else spec.head_dim,
        window=None if whole else spec.window,
        capacity=spec.moe.capacity_factor if spec.moe else None,
    )


def _attention(spec: DecoderSpec, entry: Tensor, norm: Tensor) -> list[Operator]:
    qkv = Tensor(name="qkv_out", dims=("batch", "sequence", "query+key_value"))
    core = Tensor(name="attention_out", dims=("batch", "sequence", "query"))
    projected = stream("projection_out")
    before = norm_step(spec, "input_norm", entry, norm)
    if spec.mla is not None:
        return [before, *latent_attention(spec, spec.mla, norm, projected)]
    operators = [before, _packed_product(spec, norm, qkv)]
    if spec.qk_norm:
        operators.append(_qk_norm(qkv))
    if spec.position == "rotary":
        operators.append(_rotary(operators[-1].output))
    mixed = _core(spec, operators[-1].output, core)
    return [*operators, mixed, _projection(spec, core, projected)]


def _packed_product(spec: DecoderSpec, norm: Tensor, qkv: Tensor) -> Operator:
    return Operator(
        name="qkv",
        kind=Kind.MATMUL,
        function="matmul",
        inputs=(norm,),
        output=qkv,
        columns=("query", "key_value"),
        contracted="hidden",
        bias=spec.attention_bias,
        saves=(norm,),
    )


def _qk_norm(qkv: Tensor) -> Operator:
    return Operator(
        name="qk_norm",
        kind=Kind.ELEMENTWISE,
        function="qk-norm",
        inputs=(qkv,),
        output=Tensor(name="qk_norm_out", dims=qkv.dims),
        vectors=2,
        vector_dim="head_dim",
        saves=(qkv,),
        forward_elements=2,
        backward_elements=3,
        kernels=2,
    )


def _rotary(qkv: Tensor) -> Operator:
    return Operator(
        name="rotary",
        kind=Kind.ELEMENTWISE,
        function="rotary",
        inputs=(qkv,),
        output=Tensor(name="rotary_out", dims=qkv.dims),
        forward_elements=2,
        backward_elements=2,
        kernels=2,
    )


def _core(spec: DecoderSpec, qkv: Tensor, core: Tensor) -> Operator:
    return Operator(
        name="attention",
        kind=Kind.ATTENTION,
        function="attention",
        inputs=(qkv,),
        output=core,
        vectors=1 if spec.attention_sinks else 0,
        vector_dim="heads",
        saves=(qkv,),  # and, by kernel, scores or row statistics
        kernels=1,
    )


def _projection(spec: DecoderSpec, core: Tensor, projected: Tensor) -> Operator:
    return Operator(
        name="projection",
        kind=Kind.MATMUL,
        function="matmul",
        inputs=(core,),
        output=projected,
        columns=("hidden",),
        contracted="query",
        bias=spec.output_bias,
        saves=(core,),
    )


def activation_function(spec: DecoderSpec) -> str:
    """The function between the two products of the MLP: gated ones have own names."""
    gated = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}
    return (
        gated.get(spec.activation, spec.activation)
        if spec.gated_mlp
        else (spec.activation)
    )


def _mlp(spec: DecoderSpec, norm: Tensor) -> list[Operator]:
    width = 2 if spec.gated_mlp else 1
    up = Tensor(name="mlp_up_out", dims=("batch", "sequence", "ffn"), copies=width)
    active = Tensor(name="activation_out", dims=("batch", "sequence", "ffn"))
    return [
        Operator(
            name="mlp_up",
            kind=Kind.MATMUL,
            function="matmul",
            inputs=(norm,),
            output=up,
            columns=("ffn",) * width,
            contracted="hidden",
            bias=spec.mlp_bias,
            saves=(norm,),
        ),
        Operator(
            name="activation",
            kind=Kind.ELEMENTWISE,
            function=activation_function(spec),
            inputs=(up,),
            output=active,
            saves=(up,),
            forward_elements=width + 1,
            backward_elements=2 * width + 1,
        ),
        Operator(
            name="mlp_down",
            kind=Kind.MATMUL,
            function="matmul",
            inputs=(active,),
            output=stream("mlp_down_out"),
            columns=("hidden",),
            contracted="ffn",
            bias=spec.mlp_bias,
            saves=(active,),
        ),
    ]


def _layer(spec: DecoderSpec, kind: str) -> Block:
    entry = stream("layer_in")
    return _block(spec, kind, entry, *_layer_operators(spec, kind, entry))


def _layer_operators(spec: DecoderSpec, kind: str, entry: Tensor) -> list[Operator]:
    norm, mlp_norm = stream("input_norm_out"), stream("mlp_norm_out")
    attention = _attention(spec, entry, norm)
    if spec.parallel_block:
        return side_by_side(spec, entry, attention, _mlp(spec, norm))
    middle = residual_step(spec, "attention_residual", attention[-1].output, entry)
    if spec.moe is not None and kind.startswith("expert-"):
        mlp = expert_mlp(spec, spec.moe, mlp_norm, activation_function(spec))
    else:
        mlp = _mlp(spec, mlp_norm)
    return [
        *attention,
        middle,
        norm_step(spec, "mlp_norm", middle.output, mlp_norm),
        *mlp,
        residual_step(spec, "mlp_residual", mlp[-1].output, middle.output),
    ]


def _embedding(spec: DecoderSpec) -> Block:
    mask = Tensor(
        name="embedding_mask", dims=STREAM, element=Element.MASK, internal=True
    )
    table = Operator(
        name="table",
        kind=Kind.EMBEDDING,
        function="lookup",
        inputs=(),
        output=stream("table_out"),
        columns=("hidden",),
        contracted="vocab",
        saves=(mask,) if spec.embedding_dropout > 0 else (),
        forward_elements=2,
        backward_elements=3,
    )
    if spec.position != "learned":
        return _block(spec, "embedding", None, table)
    position = Operator(
        name="positions",
        kind=Kind.EMBEDDING,
        function="positions",
        inputs=(table.output,),
        output=stream("positions_out"),
        columns=("hidden",),
        contracted="positions",
        forward_elements=3,
        backward_elements=2,
    )
    return _block(spec, "embedding", None, table, position)


def _final_norm(spec: DecoderSpec) -> Block:
    entry = stream("layer_in")
    norm = norm_step(spec, "final_norm", entry, stream("final_norm_out"))
    return _block(spec, "final_norm", entry, norm)


def _head(spec: DecoderSpec) -> Block:
    entry = stream("final_norm_out")
    operators = logits_and_loss(entry)
    last = partial(_layer_operators, spec, layer_kind(spec, spec.layers - 1))
    for number in range(1, spec.multi_token_heads + 1):
        operators += prediction(spec, number, entry, last)
    return _block(spec, "head", entry, *operators)
