"""A vision transformer before a decoder, as one operator graph (LLaVA).

The first layer of the decoder ends the tower: its norm, the projector, and the tokens'
embedding, whose rows of images the projector makes.
"""

from __future__ import annotations

from dataclasses import replace

from profiles.models.decoder import decoder_graph
from profiles.models.families.transformer import activation_step
from profiles.models.families.vit import embedded, vision_layer, vision_widths
from profiles.models.graph import (
    ROWS,
    Block,
    Kind,
    ModelGraph,
    Operator,
    Tensor,
    at_rows,
    norm_step,
    product,
    stream,
)
from profiles.models.spec import VisionLanguageSpec

WIDTH = "vision_hidden"  # of the tower, among dimensions of the decoder


def vision_language_graph(
    spec: VisionLanguageSpec, name: str, seq_len: int
) -> ModelGraph:
    """The graph at sequences of *seq_len* tokens, patches of images among them."""
    text = decoder_graph(spec.text, name)
    start, *body, norm, head = text.blocks
    (first, count), *rest = body
    first_layer = _first_layer(spec, start[0], first, seq_len)
    again = ((first, count - 1),) if count > 1 else ()
    layer = str(spec.vision.layers)
    tied = tuple(
        tuple((layer if one == "embedding" else one, part) for one, part in group)
        for group in text.tied
    )
    return ModelGraph(
        name=name,
        blocks=(
            (_vision_embedding(spec, seq_len), 1),
            (_vision_layer(spec, seq_len), spec.vision.layers),
            (first_layer, 1),
            *again,
            *rest,
            norm,
            head,
        ),
        tied=tied,
        tail=text.tail,
    )


def _share(spec: VisionLanguageSpec, seq_len: int) -> float:
    """Rows of the tower for each token of the decoder."""
    return spec.images * spec.vision.own_length / seq_len


def _vision_block(
    spec: VisionLanguageSpec,
    name: str,
    entry: Tensor | None,
    operators: list[Operator],
) -> Block:
    vision = spec.vision
    return Block(
        name=name,
        operators=tuple(operators),
        extents=vision_widths(vision),
        entry=entry,
        heads=vision.heads,
        kv_heads=vision.heads,
        head_dim=vision.head_dim,
    )


def _vision_embedding(spec: VisionLanguageSpec, seq_len: int) -> Block:
    operators = at_rows(embedded(spec.vision), _share(spec, seq_len))
    return _vision_block(spec, "embedding", None, operators)


def _vision_layer(spec: VisionLanguageSpec, seq_len: int) -> Block:
    share, entry = _share(spec, seq_len), stream("layer_in")
    operators = at_rows(vision_layer(spec.vision, entry), share)
    narrow = replace(entry, copies=share)
    return _vision_block(spec, "vision-layer", narrow, operators)


def _first_layer(
    spec: VisionLanguageSpec, start: Block, layer: Block, seq_len: int
) -> Block:
    """The decoder's first *layer* after the end of the tower, and what *start* has."""
    entry = Tensor(name="vision_in", dims=(*ROWS, WIDTH))
    ended = _projected(spec, entry)
    share, patches = _share(spec, seq_len), spec.vision.patches * spec.images / seq_len
    projected = at_rows(ended[1:], patches)
    found = [*at_rows(ended[:1], share), *projected]
    assert layer.entry is not None, "a numbered layer has an input"
    table = start.operators[-1].output
    joined = Operator(
        name="image_rows",
        kind=Kind.ELEMENTWISE,
        function="residual",
        inputs=(table, projected[-1].output),
        output=layer.entry,
        forward_elements=2,
        backward_elements=2,
    )
    return replace(
        layer,
        name=f"first-{layer.name}",
        operators=(*found, *start.operators, joined, *layer.operators),
        extents={**layer.extents, WIDTH: spec.vision.hidden},
        entry=replace(entry, copies=share),
    )


def _projected(spec: VisionLanguageSpec, entry: Tensor) -> list[Operator]:
    """The tower's last norm, and the projector."""
    normed = Tensor(name="vision_norm_out", dims=entry.dims)
    found = [norm_step(spec.vision, "vision_norm", entry, normed, WIDTH)]
    width = WIDTH
    for number in range(1, spec.projector_layers + 1):
        name, source = f"projector{number}", found[-1].output
        if number > 1:
            found.append(activation_step("gelu", f"{name}_activation", source))
            source = found[-1].output
        made = stream(f"{name}_out")
        found.append(product(name, (source,), made, ("hidden",), width, bias=True))
        width = "hidden"
    return found
