"""Decoder-only transformers as operator graphs: GPT, Llama, Mistral, Qwen.

What each operator saves for backward reproduces Korthikanti et al. (MLSys 2023,
section 4.1): 34·s·b·h + 5·a·s²·b bytes a layer for a GPT with dropout in 16 bits.
"""

from __future__ import annotations

from profiles.errors import Unsupported
from profiles.graph import Block, ModelGraph
from profiles.models.spec import DecoderSpec
from profiles.operators import Element, Kind, Operator, Tensor

_STREAM = ("batch", "sequence", "hidden")


def decoder_graph(spec: DecoderSpec, name: str = "decoder") -> ModelGraph:
    """The operator graph of a dense decoder.

    Raises Unsupported for what is described but not priced yet (experts, MLA).
    """
    for part, what in (
        (spec.moe, "experts"),
        (spec.mla, "latent attention"),
        (spec.parallel_block or None, "attention and MLP side by side"),
    ):
        if part is not None:
            raise Unsupported(
                f"{name} has {what}, which the cost model does not price yet; "
                "dense decoders are priced"
            )
    layer = _layer(spec)
    tied = (
        ((("embedding", "table"), ("head", "logits")),) if spec.tied_embeddings else ()
    )
    blocks = ((_embedding(spec), 1), (layer, spec.layers), (_final_norm(spec), 1))
    return ModelGraph(name=name, blocks=(*blocks, (_head(spec), 1)), tied=tied)


def _stream(name: str) -> Tensor:
    return Tensor(name=name, dims=_STREAM)


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
    }


def _block(
    spec: DecoderSpec, name: str, entry: Tensor | None, *operators: Operator
) -> Block:
    return Block(
        name=name,
        operators=operators,
        extents=_extents(spec),
        entry=entry,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        window=spec.window,
    )


def _norm(spec: DecoderSpec, name: str, source: Tensor, output: Tensor) -> Operator:
    return Operator(
        name=name,
        kind=Kind.ELEMENTWISE,
        function=spec.norm,
        inputs=(source,),
        output=output,
        vectors=2 if spec.norm == "layernorm" else 1,
        saves=(source,),
        forward_elements=2,  # read x, write y
        backward_elements=3,  # read x and dy, write dx
    )


def _residual(spec: DecoderSpec, name: str, branch: Tensor, skip: Tensor) -> Operator:
    mask = Tensor(
        name=f"{name}_mask", dims=_STREAM, element=Element.MASK, internal=True
    )
    dropout = spec.dropout > 0
    return Operator(
        name=name,
        kind=Kind.ELEMENTWISE,
        function="dropout-residual" if dropout else "residual",
        inputs=(branch, skip),
        output=_stream(f"{name}_out"),
        saves=(mask,) if dropout else (),
        forward_elements=3.5 if dropout else 3,  # branch, skip, sum and its mask
        backward_elements=2.5 if dropout else 1,
        kernels=1,
    )


def _attention(spec: DecoderSpec, entry: Tensor, norm: Tensor) -> list[Operator]:
    qkv = Tensor(name="qkv_out", dims=("batch", "sequence", "query+key_value"))
    core = Tensor(name="attention_out", dims=("batch", "sequence", "query"))
    projected = _stream("projection_out")
    operators = [
        _norm(spec, "input_norm", entry, norm),
        Operator(
            name="qkv",
            kind=Kind.MATMUL,
            function="matmul",
            inputs=(norm,),
            output=qkv,
            columns=("query", "key_value"),
            contracted="hidden",
            bias=spec.attention_bias,
            saves=(norm,),
        ),
    ]
    if spec.qk_norm:
        normed = Tensor(name="qk_norm_out", dims=qkv.dims)
        operators.append(
            Operator(
                name="qk_norm",
                kind=Kind.ELEMENTWISE,
                function="qk-norm",
                inputs=(qkv,),
                output=normed,
                vectors=2,
                vector_dim="head_dim",
                saves=(qkv,),
                forward_elements=2,
                backward_elements=3,
                kernels=2,
            )
        )
        qkv = normed
    if spec.position == "rotary":
        rotated = Tensor(name="rotary_out", dims=qkv.dims)
        operators.append(
            Operator(
                name="rotary",
                kind=Kind.ELEMENTWISE,
                function="rotary",
                inputs=(qkv,),
                output=rotated,
                forward_elements=2,
                backward_elements=2,
                kernels=2,
            )
        )
        qkv = rotated
    operators += [
        Operator(
            name="attention",
            kind=Kind.ATTENTION,
            function="attention",
            inputs=(qkv,),
            output=core,
            saves=(qkv,),  # and, by kernel, scores or row statistics
            kernels=1,
        ),
        Operator(
            name="projection",
            kind=Kind.MATMUL,
            function="matmul",
            inputs=(core,),
            output=projected,
            columns=("hidden",),
            contracted="query",
            bias=spec.output_bias,
            saves=(core,),
        ),
    ]
    return operators


def activation_function(spec: DecoderSpec) -> str:
    """The function between the two products of the MLP: gated ones have own names."""
    gated = {"silu": "swiglu", "gelu": "geglu"}
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
            output=_stream("mlp_down_out"),
            columns=("hidden",),
            contracted="ffn",
            bias=spec.mlp_bias,
            saves=(active,),
        ),
    ]


def _layer(spec: DecoderSpec) -> Block:
    entry = _stream("layer_in")
    norm, mlp_norm = _stream("input_norm_out"), _stream("mlp_norm_out")
    attention = _attention(spec, entry, norm)
    middle = _residual(spec, "attention_residual", attention[-1].output, entry)
    mlp = _mlp(spec, mlp_norm)
    return _block(
        spec,
        "layer",
        entry,
        *attention,
        middle,
        _norm(spec, "mlp_norm", middle.output, mlp_norm),
        *mlp,
        _residual(spec, "mlp_residual", mlp[-1].output, middle.output),
    )


def _embedding(spec: DecoderSpec) -> Block:
    mask = Tensor(
        name="embedding_mask", dims=_STREAM, element=Element.MASK, internal=True
    )
    table = Operator(
        name="table",
        kind=Kind.EMBEDDING,
        function="lookup",
        inputs=(),
        output=_stream("table_out"),
        columns=("hidden",),
        contracted="vocab",
        saves=(mask,) if spec.dropout > 0 else (),
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
        output=_stream("positions_out"),
        columns=("hidden",),
        contracted="positions",
        forward_elements=3,
        backward_elements=2,
    )
    return _block(spec, "embedding", None, table, position)


def _final_norm(spec: DecoderSpec) -> Block:
    entry = _stream("layer_in")
    norm = _norm(spec, "final_norm", entry, _stream("final_norm_out"))
    return _block(spec, "final_norm", entry, norm)


def _head(spec: DecoderSpec) -> Block:
    entry = _stream("final_norm_out")
    logits = Tensor(name="logits_out", dims=("batch", "sequence", "vocab"))
    softmax = Tensor(
        name="softmax", dims=logits.dims, element=Element.FP32, internal=True
    )
    product = Operator(
        name="logits",
        kind=Kind.MATMUL,
        function="matmul",
        inputs=(entry,),
        output=logits,
        columns=("vocab",),
        contracted="hidden",
        saves=(entry,),
    )
    losses = Tensor(name="loss_out", dims=("batch", "sequence"), element=Element.FP32)
    loss = Operator(
        name="loss",
        kind=Kind.CROSS_ENTROPY,
        function="cross-entropy",
        inputs=(logits,),
        output=losses,
        saves=(softmax,),
        forward_elements=8,
        backward_elements=5,
        kernels=8,
    )
    return _block(spec, "head", entry, product, loss)
