"""T5 and its like as an operator graph (Raffel et al., 2020, section 2.1).

Layers in model order: the encoder's, then the decoder's. The first of the decoder ends
the encoder with its norm, whose output goes to all decoder layers, and looks up the
decoder's tokens. The decoder's rows are fewer: its tokens for each of the encoder's.
"""

from __future__ import annotations

from dataclasses import replace

from profiles.models.families.transformer import (
    dropout_step,
    mlp_half,
    pre_norm_layer,
    widths,
)
from profiles.models.graph import (
    ROWS,
    Block,
    Kind,
    ModelGraph,
    Operator,
    Tensor,
    at_rows,
    attention_core,
    logits_and_loss,
    lookup,
    norm_step,
    product,
    residual_step,
    stream,
)
from profiles.models.spec import EncoderDecoderSpec

ENCODED = stream("encoder_out")
DECODER_ENTRY = "decoder_in"


def encoder_decoder_graph(
    spec: EncoderDecoderSpec, name: str, seq_len: int
) -> ModelGraph:
    """The graph where the encoder has *seq_len* tokens."""
    share = spec.decoder_seq_len / seq_len
    table, later = ("embedding", "table"), f"{spec.encoder_layers}"
    head = (("head", "logits"),) if spec.tied_embeddings else ()
    more = ((_decoder_layer(spec, share), spec.decoder_layers - 1),)
    return ModelGraph(
        name=name,
        blocks=(
            (_embedding(spec), 1),
            (_encoder_layer(spec), spec.encoder_layers),
            (_first_decoder_layer(spec, share), 1),
            *(more if spec.decoder_layers > 1 else ()),
            (_final_norm(spec, share), 1),
            (_head(spec, share), 1),
        ),
        tied=((table, (later, "decoder_table"), *head),),
    )


def _block(
    spec: EncoderDecoderSpec,
    name: str,
    entry: Tensor | None,
    operators: list[Operator],
    *reads: Tensor,
) -> Block:
    more = {"vocab": spec.vocab, "buckets": spec.relative_buckets}
    return Block(
        name=name,
        operators=tuple(operators),
        extents=widths(spec, **more),
        entry=entry,
        heads=spec.heads,
        kv_heads=spec.heads,
        head_dim=spec.head_dim,
        reads=reads,
    )


def _embedding(spec: EncoderDecoderSpec) -> Block:
    table = lookup("table", "vocab")
    dropped = dropout_step("embedding_dropout", table.output, spec.dropout)
    return _block(spec, "embedding", None, [table, *dropped, _biases()])


def _biases() -> Operator:
    """Of relative positions, for each head: in the first layer of either side, for all
    of its layers. What they add to the scores is in attention's price."""
    return replace(
        lookup("relative_bias", "buckets", width="heads"),
        forward_elements=0,
        backward_elements=0,
    )


def _encoder_layer(spec: EncoderDecoderSpec) -> Block:
    entry = stream("layer_in")
    layer = pre_norm_layer(spec, entry, bias=False)
    return _block(spec, "encoder-layer", entry, layer)


def _first_decoder_layer(spec: EncoderDecoderSpec, share: float) -> Block:
    entry = stream("layer_in")
    norm = norm_step(spec, "encoder_norm", entry, stream("encoder_norm_out"))
    dropped = dropout_step("encoder_dropout", norm.output, spec.dropout)
    before = [norm, *dropped]
    before[-1] = replace(before[-1], output=ENCODED)
    table = lookup("decoder_table", "vocab")
    masks = dropout_step("decoder_dropout", table.output, spec.dropout)
    started = [table, *masks, _biases()]
    source = started[-2].output
    layer = [*started, *_decoder_steps(spec, source)]
    operators = [*before, *_at(layer, share)]
    return _block(spec, "first-decoder-layer", entry, operators)


def _decoder_layer(spec: EncoderDecoderSpec, share: float) -> Block:
    entry = stream(DECODER_ENTRY)
    operators = _at(_decoder_steps(spec, entry), share)
    narrow = replace(entry, copies=share)
    return _block(spec, "decoder-layer", narrow, operators, ENCODED)


def _decoder_steps(spec: EncoderDecoderSpec, entry: Tensor) -> list[Operator]:
    """Attention to the decoder's tokens before, attention to the encoder's output, and
    the MLP."""
    own = pre_norm_layer(spec, entry, bias=False, causal=True)[:5]
    norm, query = (
        stream("cross_norm_out"),
        Tensor(name="cross_query_out", dims=(*ROWS, "query")),
    )
    keys = Tensor(name="cross_key_value_out", dims=(*ROWS, "key_value"))
    core = replace(
        attention_core(query, "query", causal=False),
        name="cross_attention",
        inputs=(query, keys),
        saves=(query, keys),
        output=Tensor(name="cross_attention_out", dims=(*ROWS, "query")),
        keys=1.0,
    )
    out = stream("cross_projection_out")
    mixed = residual_step(spec, "cross_residual", out, own[-1].output)
    return [
        *own,
        norm_step(spec, "cross_norm", own[-1].output, norm),
        product("cross_query", (norm,), query, ("query",), "hidden"),
        product("cross_key_value", (ENCODED,), keys, ("key_value",), "hidden"),
        core,
        product("cross_projection", (core.output,), out, ("hidden",), "query"),
        mixed,
        *mlp_half(spec, mixed.output, stream("mlp_norm_out")),
    ]


def _at(operators: list[Operator], share: float) -> list[Operator]:
    """*operators* at the decoder's rows, but for keys and values of the encoder's."""
    keys = next(one for one in operators if one.name == "cross_key_value")
    given = (ENCODED, keys.output)
    found = at_rows(operators, share, given)
    return [
        keys
        if one.name == keys.name
        else replace(one, keys=1.0)
        if one.kind is Kind.ATTENTION and one.keys is not None
        else one
        for one in found
    ]


def _final_norm(spec: EncoderDecoderSpec, share: float) -> Block:
    entry = stream(DECODER_ENTRY)
    norm = norm_step(spec, "final_norm", entry, stream("final_norm_out"))
    dropped = dropout_step("final_dropout", norm.output, spec.dropout)
    narrow = replace(entry, copies=share)
    return _block(spec, "final_norm", narrow, at_rows([norm, *dropped], share))


def _head(spec: EncoderDecoderSpec, share: float) -> Block:
    entry = stream("final_norm_out")
    operators = at_rows(logits_and_loss(entry), share)
    return _block(spec, "head", replace(entry, copies=share), operators)
