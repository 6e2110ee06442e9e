"""Vision transformers as operator graphs (Dosovitskiy et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import replace

from profiles.models.families.transformer import dropout_step, pre_norm_layer, widths
from profiles.models.graph import (
    ROWS,
    Block,
    ModelGraph,
    Operator,
    Tensor,
    at_rows,
    logits_and_loss,
    lookup,
    norm_step,
    product,
    stream,
)
from profiles.models.spec import VitSpec


def vit_graph(spec: VitSpec, name: str) -> ModelGraph:
    """The graph of a classifier, whose head reads the token of the class."""
    entry = stream("layer_in")
    norm = norm_step(spec, "final_norm", entry, stream("final_norm_out"))
    return ModelGraph(
        name=name,
        blocks=(
            (_block(spec, "embedding", None, embedded(spec)), 1),
            (_block(spec, "layer", entry, vision_layer(spec, entry)), spec.layers),
            (_block(spec, "final_norm", entry, [norm]), 1),
            (_block(spec, "head", norm.output, _head(spec, norm.output)), 1),
        ),
    )


def vision_widths(spec: VitSpec) -> dict[str, int]:
    """The dimensions of a vision transformer's layers and ends."""
    return widths(
        spec,
        patch=spec.channels * spec.patch_size**2,
        positions=spec.own_length,
        classes=spec.classes,
    )


def _block(
    spec: VitSpec, name: str, entry: Tensor | None, operators: list[Operator]
) -> Block:
    return Block(
        name=name,
        operators=tuple(operators),
        extents=vision_widths(spec),
        entry=entry,
        heads=spec.heads,
        kv_heads=spec.heads,
        head_dim=spec.head_dim,
    )


def vision_layer(spec: VitSpec, entry: Tensor) -> list[Operator]:
    """A numbered layer."""
    return pre_norm_layer(spec, entry, bias=True)


def embedded(spec: VitSpec) -> list[Operator]:
    """A product of each patch, the class's vector before them, and positions."""
    image = Tensor(name="image", dims=(*ROWS, "patch"))
    cut = product(
        "patches",
        (image,),
        stream("patches_out"),
        ("hidden",),
        "patch",
        bias=spec.patch_bias,
    )
    (cut,) = at_rows([cut], spec.patches / spec.own_length)
    positions = lookup("positions", "positions", cut.output)
    found = [replace(cut, inputs=()), replace(positions, vectors=1)]
    found += dropout_step("embedding_dropout", positions.output, spec.dropout)
    if spec.pre_norm:
        source = found[-1].output
        found.append(norm_step(spec, "pre_norm", source, stream("pre_norm_out")))
    return found


def _head(spec: VitSpec, entry: Tensor) -> list[Operator]:
    token = stream("class_token")
    head = logits_and_loss(token, columns="classes", bias=True)
    found = at_rows(head, 1 / spec.own_length)
    return [replace(found[0], inputs=(entry,)), *found[1:]]
