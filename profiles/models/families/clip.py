"""CLIP as an operator graph: the tower of text, then that of images.

The first layer of the second tower ends the first one, whose features, a row for each
text, pass all boundaries to the head, where they are compared.
"""

from __future__ import annotations

from dataclasses import replace

from profiles.models.families.transformer import pre_norm_layer, widths
from profiles.models.families.vit import embedded, vision_layer, vision_widths
from profiles.models.graph import (
    ROWS,
    Block,
    Kind,
    ModelGraph,
    Operator,
    Tensor,
    at_rows,
    lookup,
    norm_step,
    product,
    stream,
)
from profiles.models.spec import ClipSpec


def clip_graph(spec: ClipSpec, name: str) -> ModelGraph:
    """The graph of both towers and the loss that compares them."""
    more = ((_vision_layer(spec), spec.vision.layers - 1),)
    return ModelGraph(
        name=name,
        blocks=(
            (_text_block(spec, "embedding", None, _embedding()), 1),
            (_text_layer(spec), spec.layers),
            (_first_vision_layer(spec), 1),
            *(more if spec.vision.layers > 1 else ()),
            (_final_norm(spec), 1),
            (_head(spec), 1),
        ),
    )


def _text_block(
    spec: ClipSpec, name: str, entry: Tensor | None, operators: list[Operator]
) -> Block:
    return Block(
        name=name,
        operators=tuple(operators),
        extents=widths(spec, vocab=spec.vocab, positions=spec.positions),
        entry=entry,
        heads=spec.heads,
        kv_heads=spec.heads,
        head_dim=spec.head_dim,
    )


def _vision_block(
    spec: ClipSpec,
    name: str,
    entry: Tensor,
    operators: list[Operator],
    *reads: Tensor,
) -> Block:
    vision = spec.vision
    more = {"text_hidden": spec.hidden, "features": spec.projection, "one": 1}
    return Block(
        name=name,
        operators=tuple(operators),
        extents={**vision_widths(vision), **more},
        entry=entry,
        heads=vision.heads,
        kv_heads=vision.heads,
        head_dim=vision.head_dim,
        reads=reads,
    )


def _embedding() -> list[Operator]:
    table = lookup("table", "vocab")
    return [table, lookup("positions", "positions", table.output)]


def _text_layer(spec: ClipSpec) -> Block:
    entry = stream("layer_in")
    layer = pre_norm_layer(spec, entry, bias=True, causal=True)
    return _text_block(spec, "text-layer", entry, layer)


def _images(spec: ClipSpec) -> float:
    """Rows of the second tower for each of the first one's."""
    return spec.vision.own_length / spec.positions


def _first_vision_layer(spec: ClipSpec) -> Block:
    entry = Tensor(name="text_in", dims=(*ROWS, "text_hidden"))
    normed = Tensor(name="text_norm_out", dims=entry.dims)
    norm = norm_step(spec, "text_norm", entry, normed, "text_hidden")
    last = Tensor(name="text_end", dims=entry.dims)
    made = _features("text_features")
    (projected,) = _once(spec, [_projection("text_features", last, made)])
    started = embedded(spec.vision)
    layer = vision_layer(spec.vision, started[-1].output)
    operators = [
        norm,
        _reading(projected, normed),
        *at_rows([*started, *layer], _images(spec)),
    ]
    return _vision_block(spec, "first-vision-layer", entry, operators)


def _vision_layer(spec: ClipSpec) -> Block:
    entry, share = stream("layer_in"), _images(spec)
    layer = at_rows(vision_layer(spec.vision, entry), share)
    return _vision_block(spec, "vision-layer", replace(entry, copies=share), layer)


def _final_norm(spec: ClipSpec) -> Block:
    """Of the class's token alone."""
    entry = replace(stream("layer_in"), copies=_images(spec))
    token = stream("class_token")
    norm = norm_step(spec, "final_norm", token, stream("final_norm_out"))
    (norm,) = _once(spec, [norm])
    return _vision_block(spec, "final_norm", entry, [_reading(norm, entry)])


def _head(spec: ClipSpec) -> Block:
    token, made = stream("final_norm_out"), _features("image_features")
    projection = _projection("image_features", token, made)
    text = _features("text_features")
    compared = Operator(
        name="similarity",
        kind=Kind.ELEMENTWISE,
        function="similarity",
        inputs=(made, text),
        output=Tensor(name="similarity_out", dims=(*ROWS, "one")),
        vectors=1,
        vector_dim="one",
        saves=(made, text),
    )
    operators = _once(spec, [projection, compared])
    (entry,) = operators[0].inputs
    read = operators[1].inputs[1]
    return _vision_block(spec, "head", entry, operators, read)


def _features(name: str) -> Tensor:
    return Tensor(name=f"{name}_out", dims=(*ROWS, "features"))


def _projection(name: str, source: Tensor, made: Tensor) -> Operator:
    width = source.dims[-1]
    return product(name, (source,), made, ("features",), width)


def _once(spec: ClipSpec, operators: list[Operator]) -> list[Operator]:
    """*operators* at a row for each sequence."""
    return at_rows(operators, 1 / spec.positions)


def _reading(operator: Operator, source: Tensor) -> Operator:
    """*operator*, reading a row of what *source* has; it keeps that row alone."""
    return replace(operator, inputs=(source,))
