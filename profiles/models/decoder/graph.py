"""Decoders as operator graphs: GPT, Llama, Mixtral, DeepSeek, Qwen, Nemotron-H.

A layer has dense attention, a latent one or a recurrence, an MLP or experts, or just
one of the two, and may look through a window: each combination that a model has is a
block of its own. What the operators of a
GPT with dropout save for backward in 16 bits reproduces Korthikanti et al. (MLSys 2023,
section 4.1): 34·s·b·h + 5·a·s²·b bytes a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby

from profiles.models.decoder.attention import (
    beside_extents,
    latent_attention,
    latent_extents,
    mean_head_dim,
    require_fusible,
    side_by_side,
)
from profiles.models.decoder.moe import expert_extents, expert_mlp
from profiles.models.decoder.recurrence import recurrence, recurrence_extents
from profiles.models.graph import (
    PRODUCTS,
    ROWS,
    STREAM,
    Block,
    Element,
    Kind,
    ModelGraph,
    Operator,
    Tensor,
    attention_core,
    logits_and_loss,
    lookup,
    mlp_steps,
    norm_step,
    product,
    residual_step,
    rotary_step,
    stream,
)
from profiles.models.spec import EXPERTS, FULL, RECURRENT, SLIDING, DecoderSpec


def decoder_graph(spec: DecoderSpec, name: str = "decoder") -> ModelGraph:
    """The operator graph of a decoder; its body's blocks are called by `layer_kind`.

    Raises Unsupported for what is described but not priced yet.
    """
    if spec.parallel_block and not spec.arrangement.mlp_norm:
        require_fusible(spec, name)
    kinds = [(spec.mixer(one), spec.mlp(one)) for one in range(spec.layers)]
    layers = {kind: _layer(spec, *kind) for kind in dict.fromkeys(kinds)}
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


_MIXERS = {FULL: "", SLIDING: "window-"}


def layer_kind(spec: DecoderSpec, number: int) -> str:
    """Of which kind a numbered layer is: `layer`, `expert-layer`, `window-layer`,
    `mamba-2-layer` …; without an MLP `attention-layer`, of an MLP alone `mlp-layer`.

    A model whose layers all have the same window has plain names.
    """
    return _kind(spec, spec.mixer(number), spec.mlp(number))


def _kind(spec: DecoderSpec, mixer: str, mlp: str) -> str:
    experts = "expert-" if mlp == EXPERTS else ""
    if not mixer:
        return f"{experts or 'mlp-'}layer"
    if mixer == RECURRENT and spec.recurrence is not None:
        return f"{experts}{spec.recurrence.kind}-layer"
    alone = "" if mlp else "attention-"
    return f"{experts}{_MIXERS[mixer]}{alone}layer"


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
    wide = spec.arrangement.wide_qk_norm
    return {
        "hidden": spec.hidden,
        "query": spec.heads * spec.head_dim,
        "key_value": 2 * spec.kv_heads * spec.head_dim,
        "heads": spec.heads,
        "ffn": spec.ffn_hidden,
        "vocab": spec.vocab,
        "positions": spec.max_positions,
        "head_dim": spec.head_dim,
        **({"keys": spec.kv_heads * spec.head_dim} if wide else {}),
        **(beside_extents(spec) if spec.parallel_block else {}),
        **(latent_extents(spec, spec.mla) if spec.mla else {}),
        **(recurrence_extents(spec.recurrence) if spec.recurrence else {}),
        **(expert_extents(spec.moe) if spec.moe else {}),
        **({"pair": 2 * spec.hidden} if spec.multi_token_heads else {}),
    }


def _block(
    spec: DecoderSpec, name: str, entry: Tensor | None, *operators: Operator
) -> Block:
    some = spec.window_every > 1 or SLIDING in spec.pattern
    whole = some and "window-" not in name
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
    projected = stream("projection_out")
    before = [norm_step(spec, "input_norm", entry, norm)] if norm != entry else []
    if spec.mla is not None:
        return [*before, *latent_attention(spec, spec.mla, norm, projected)]
    columns: tuple[str, ...] = ("query", "key_value")
    turned, bias = (*ROWS, "+".join(columns)), spec.attention_bias
    columns = (*columns, "query") if spec.attention_gate else columns
    qkv = Tensor(name="qkv_out", dims=(*ROWS, "+".join(columns)))
    operators = [*before, product("qkv", (norm,), qkv, columns, "hidden", bias=bias)]
    if spec.arrangement.wide_qk_norm:
        each = _qk_norm(qkv, turned)
        operators.append(replace(each, vectors=1, vector_dim="query+keys"))
    elif spec.qk_norm:
        operators.append(_qk_norm(qkv, turned))
    if spec.position == "rotary":
        made = operators[-1].output
        operators.append(rotary_step("rotary", (made,), turned, kernels=2))
    core = attention_core(operators[-1].output, "query", spec.attention_sinks)
    operators.append(core)
    if spec.attention_gate:
        operators.append(_gate(core.output, qkv))
    bias, mixed = spec.output_bias, (operators[-1].output,)
    last = product("projection", mixed, projected, ("hidden",), "query", bias=bias)
    return [*operators, last]


def _gate(mixed: Tensor, qkv: Tensor) -> Operator:
    """What attention makes times σ of a product as wide (Qwen3-Next)."""
    return Operator(
        name="attention_gate",
        kind=Kind.ELEMENTWISE,
        function="gate",
        inputs=(mixed, qkv),
        output=Tensor(name="attention_gate_out", dims=mixed.dims),
        saves=(mixed, qkv),
        forward_elements=3,
        backward_elements=5,
    )


def _qk_norm(qkv: Tensor, dims: tuple[str, ...]) -> Operator:
    return Operator(
        name="qk_norm",
        kind=Kind.ELEMENTWISE,
        function="qk-norm",
        inputs=(qkv,),
        output=Tensor(name="qk_norm_out", dims=dims),
        vectors=2,
        vector_dim="head_dim",
        saves=(qkv,),
        forward_elements=2,
        backward_elements=3,
        kernels=2,
    )


def _layer(spec: DecoderSpec, mixer: str, mlp: str) -> Block:
    entry = stream("layer_in")
    operators = _layer_operators(spec, mixer, mlp, entry)
    return _block(spec, _kind(spec, mixer, mlp), entry, *operators)


def _layer_operators(
    spec: DecoderSpec, mixer: str, mlp: str, entry: Tensor
) -> list[Operator]:
    if spec.parallel_block and spec.arrangement.mlp_norm:
        return _two_norms(spec, entry)
    if spec.parallel_block:
        norm = stream("input_norm_out")
        attention = _attention(spec, entry, norm)
        return side_by_side(spec, entry, attention, mlp_steps(spec, norm))
    mixed = _mixed(spec, mixer, entry) if mixer else []
    return [*mixed, *(_mlp(spec, mlp, mixed[-1].output if mixed else entry))]


def _two_norms(spec: DecoderSpec, entry: Tensor) -> list[Operator]:
    """Attention and MLP side by side, each behind a norm of its own."""
    norm, second = stream("input_norm_out"), stream("mlp_norm_out")
    attention, steps = _attention(spec, entry, norm), mlp_steps(spec, second)
    mixed = residual_step(spec, "attention_residual", attention[-1].output, entry)
    return [
        *attention,
        mixed,
        norm_step(spec, "mlp_norm", entry, second),
        *steps,
        residual_step(spec, "mlp_residual", steps[-1].output, mixed.output),
    ]


def _normed_after(spec: DecoderSpec, name: str, made: Tensor) -> list[Operator]:
    """The norm of what a half of a layer made, where there is one."""
    if spec.arrangement.norms == "before":
        return []
    return [norm_step(spec, f"{name}_norm", made, stream(f"{name}_norm_out"))]


def _mixed(spec: DecoderSpec, mixer: str, entry: Tensor) -> list[Operator]:
    """The half of a layer in which tokens meet."""
    norm = entry if spec.arrangement.norms == "after" else stream("input_norm_out")
    if mixer == RECURRENT and spec.recurrence is not None:
        name, operators = "mixer", recurrence(spec, spec.recurrence, entry, norm)
    else:
        name, operators = "attention", _attention(spec, entry, norm)
    operators += _normed_after(spec, f"{name}_out", operators[-1].output)
    added = residual_step(spec, f"{name}_residual", operators[-1].output, entry)
    return [*operators, added]


def _mlp(spec: DecoderSpec, mlp: str, entry: Tensor) -> list[Operator]:
    """The half in which each token is for itself; nothing where a layer has none."""
    if not mlp:
        return []
    norm = entry if spec.arrangement.norms == "after" else stream("mlp_norm_out")
    if mlp == EXPERTS and spec.moe is not None:
        steps = expert_mlp(spec, spec.moe, norm)
    else:
        steps = mlp_steps(spec, norm)
    steps += _normed_after(spec, "mlp_out", steps[-1].output)
    before = [norm_step(spec, "mlp_norm", entry, norm)] if norm != entry else []
    return [
        *before,
        *steps,
        residual_step(spec, "mlp_residual", steps[-1].output, entry),
    ]


def _embedding(spec: DecoderSpec) -> Block:
    mask = Tensor(
        name="embedding_mask", dims=STREAM, element=Element.MASK, internal=True
    )
    masks = (mask,) if spec.embedding_dropout > 0 else ()
    operators = [lookup("table", "vocab", saves=masks)]
    if spec.position == "learned":
        operators.append(lookup("positions", "positions", operators[-1].output))
    if spec.arrangement.embedding_norm:
        made, normed = operators[-1].output, stream("embedding_norm_out")
        operators.append(norm_step(spec, "embedding_norm", made, normed))
    return _block(spec, "embedding", None, *operators)


def _final_norm(spec: DecoderSpec) -> Block:
    entry = stream("layer_in")
    norm = norm_step(spec, "final_norm", entry, stream("final_norm_out"))
    return _block(spec, "final_norm", entry, norm)


def _head(spec: DecoderSpec) -> Block:
    entry = stream("final_norm_out")
    operators = logits_and_loss(entry)
    last = partial(_layer_operators, spec, *spec.predicting)
    for number in range(1, spec.multi_token_heads + 1):
        operators += _prediction(spec, number, entry, last)
    return _block(spec, "head", entry, *operators)


def _prediction(
    spec: DecoderSpec,
    number: int,
    source: Tensor,
    layer: Callable[[Tensor], list[Operator]],
) -> list[Operator]:
    """One more token predicted (DeepSeek-V3, section 2.2): the stream and the next
    token's embedding, normed, side by side through a product and one more *layer*.

    Embedding and head are the model's: their weights are counted there.
    """
    first, second, entry = (stream(name) for name in ("first", "second", "layer_in"))
    logits, loss = logits_and_loss(stream("norm_out"))
    last = layer(entry)
    operators = [
        norm_step(spec, "first_norm", source, first),
        norm_step(spec, "second_norm", source, second),
        product("join", (first, second), entry, ("hidden",), "pair"),
        *last,
        norm_step(spec, "norm", last[-1].output, stream("norm_out")),
        replace(logits, shared=True),
        loss,
    ]
    return [_prefixed(one, f"mtp{number}_", source) for one in operators]


def _prefixed(operator: Operator, prefix: str, given: Tensor) -> Operator:
    """The same operator under another name, but for the tensor that is *given*."""

    def renamed(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(
            one if one == given else replace(one, name=prefix + one.name)
            for one in tensors
        )

    return replace(
        operator,
        name=prefix + operator.name,
        inputs=renamed(operator.inputs),
        output=renamed((operator.output,))[0],
        saves=renamed(operator.saves),
    )
