"""BERT, RoBERTa and ALBERT as an operator graph (Devlin et al., NAACL 2019).

The block before the head is what pre-training adds to the encoder: a product, a
function and a norm for masked words, and a pooler for the next sentence.
"""

from __future__ import annotations

from dataclasses import replace

from profiles.models.families.transformer import (
    activation_step,
    dropout_step,
    post_norm_layer,
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
    cross_entropy,
    logits_and_loss,
    lookup,
    norm_step,
    product,
    stream,
)
from profiles.models.spec import BertSpec

NARROW = "narrow"  # ALBERT's tables


def bert_graph(spec: BertSpec, name: str, seq_len: int) -> ModelGraph:
    """The graph at sequences of *seq_len* tokens."""
    groups = range(0, spec.layers, spec.shared_layers)
    shared = (
        tuple(tuple(map(str, range(one, one + spec.shared_layers))) for one in groups)
        if spec.shared_layers > 1
        else ()
    )
    entry = stream("layer_in")
    layer = post_norm_layer(spec, entry, bias=True)
    return ModelGraph(
        name=name,
        blocks=(
            (_block(spec, "embedding", None, _embedding(spec)), 1),
            (_block(spec, "layer", entry, layer), spec.layers),
            (_block(spec, "final_norm", entry, _transform(spec, entry, seq_len)), 1),
            (_head(spec), 1),
        ),
        tied=((("embedding", "table"), ("head", "logits")),),
        shared=shared,
    )


def _block(
    spec: BertSpec, name: str, entry: Tensor | None, operators: list[Operator]
) -> Block:
    more = {
        NARROW: spec.table_width,
        "vocab": spec.vocab,
        "positions": spec.max_positions,
        "segments": spec.segments,
        "answers": 2,
    }
    return Block(
        name=name,
        operators=tuple(operators),
        extents=widths(spec, **more),
        entry=entry,
        heads=spec.heads,
        kv_heads=spec.heads,
        head_dim=spec.head_dim,
    )


def _width(spec: BertSpec) -> str:
    return NARROW if spec.embedding_rank else "hidden"


def _embedding(spec: BertSpec) -> list[Operator]:
    width = _width(spec)
    found = [lookup("table", "vocab", width=width)]
    found.append(lookup("positions", "positions", found[-1].output, width))
    if spec.segments:
        found.append(lookup("segments", "segments", found[-1].output, width))
    normed = Tensor(name="embedding_norm_out", dims=(*ROWS, width))
    found.append(norm_step(spec, "embedding_norm", found[-1].output, normed, width))
    found += dropout_step("embedding_dropout", normed, spec.dropout)
    if spec.embedding_rank:
        wide, source = stream("widened_out"), (found[-1].output,)
        found.append(product("widened", source, wide, ("hidden",), width, bias=True))
    return found


def _transform(spec: BertSpec, entry: Tensor, seq_len: int) -> list[Operator]:
    width = _width(spec)
    made = Tensor(name="transform_out", dims=(*ROWS, width))
    active = activation_step(spec.activation, "transform_activation", made)
    normed = Tensor(name="final_norm_out", dims=(*ROWS, width))
    return [
        *(_next_sentence(entry, 1 / seq_len) if spec.next_sentence else ()),
        product("transform", (entry,), made, (width,), "hidden", bias=True),
        active,
        norm_step(spec, "final_norm", active.output, normed, width),
    ]


def _next_sentence(entry: Tensor, share: float) -> list[Operator]:
    """A product of each sequence's first token, and whether sentences follow."""
    first, answers = (
        stream("first_token"),
        Tensor(name="answer_out", dims=(*ROWS, "answers")),
    )
    pooled = product("pooler", (first,), stream("pooler_out"), ("hidden",), "hidden")
    active = activation_step("tanh", "pooler_activation", pooled.output)
    source = (active.output,)
    answer = product("answer", source, answers, ("answers",), "hidden", bias=True)
    steps = [replace(pooled, bias=True), active, answer]
    found = at_rows([*steps, cross_entropy("answer_loss", answers)], share)
    return [replace(found[0], inputs=(entry,)), *found[1:]]


def _head(spec: BertSpec) -> Block:
    width = _width(spec)
    entry = Tensor(name="final_norm_out", dims=(*ROWS, width))
    logits, loss = logits_and_loss(entry, width)
    bias = Operator(  # added by the product, but no part of the table
        name="logits_bias",
        kind=Kind.ELEMENTWISE,
        function="bias",
        inputs=(logits.output,),
        output=logits.output,
        vectors=1,
        vector_dim="vocab",
        launches=0,
    )
    return _block(spec, "head", entry, [logits, bias, loss])
