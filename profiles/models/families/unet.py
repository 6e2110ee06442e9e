"""U-Nets as operator graphs, over images and volumes.

    plain     two 3×3 convolutions a level, with norms; down by pooling, up by a
              transposed convolution (Ronneberger et al., MICCAI 2015)
    strided   down by convolutions of stride 2 from the first on; up, both sides joined
              are narrowed first (LAMP, Zhu et al., MICCAI 2020: its `UNetPipe`)

Each level of the way up reads what its level made on the way down: a skip, which every
pipeline stage between hands on.
"""

from __future__ import annotations

from profiles.models.families.convolution import Steps, feature_map
from profiles.models.graph import Block, ModelGraph, Tensor
from profiles.models.spec import UnetSpec

NARROWEST = 32  # channels of LAMP's last level, at most


def unet_graph(spec: UnetSpec, name: str) -> ModelGraph:
    """The graph of a segmentation: a numbered layer for each level down, and up."""
    down = [(_down(spec, level), 1) for level in range(1, spec.depth + 1)]
    up = [(_up(spec, level), 1) for level in reversed(range(spec.depth))]
    return ModelGraph(
        name=name,
        blocks=(
            (_top(spec), 1),
            *down,
            *up,
            (_last(spec), 1),
            (_head(spec), 1),
        ),
    )


def _steps(spec: UnetSpec) -> Steps:
    return Steps(dimensions=spec.dimensions)


def _positions(spec: UnetSpec, level: int) -> int:
    halved = level + spec.strided
    return int((spec.image_size >> halved) ** spec.dimensions)


def _window(spec: UnetSpec) -> int:
    return int(3**spec.dimensions)


def _level(level: int) -> str:
    """The operator that makes what a level hands down, and on."""
    return f"level{level}"


def _activated(
    steps: Steps, spec: UnetSpec, name: str, source: Tensor, *, last: str = ""
) -> Tensor:
    """Norm and function; LAMP's keeps what it reads, others work in place. What the
    *last* of a block makes, the next layer keeps."""
    normed = steps.batch_norm(f"{name}_norm", source)
    kept = normed if spec.strided else None
    return steps.relu(last or f"{name}_relu", normed, keeps=kept, last=bool(last))


def _twice(
    steps: Steps,
    spec: UnetSpec,
    source: Tensor,
    level: int,
    widths: tuple[int, int],
    name: str,
) -> Tensor:
    """Two convolutions at a level; a plain one's second has norm and function too, a
    strided one's has a bias."""
    positions, window = _positions(spec, level), _window(spec)
    made = steps.convolution("conv1", source, widths[0], positions, window)
    made = _activated(steps, spec, "conv1", made)
    if spec.strided:
        return steps.convolution(name, made, widths[1], positions, window, bias=True)
    made = steps.convolution("conv2", made, widths[1], positions, window)
    return _activated(steps, spec, "conv2", made, last=name)


def _top(spec: UnetSpec) -> Block:
    steps, window = _steps(spec), _window(spec)
    image = steps.given("image", spec.channels, spec.image_size**spec.dimensions)
    wide = (spec.features, _positions(spec, 0), window)
    made = steps.convolution("conv1", image, *wide, first=True)
    if spec.strided:
        _activated(steps, spec, "conv1", made, last=_level(0))
    else:
        made = _activated(steps, spec, "conv1", made)
        made = steps.convolution("conv2", made, *wide)
        _activated(steps, spec, "conv2", made, last=_level(0))
    return steps.block("embedding", None)


def _down(spec: UnetSpec, level: int) -> Block:
    steps, wide = _steps(spec), spec.features_at(level)
    before = _positions(spec, level - 1)
    entry = steps.given("layer_in", spec.features_at(level - 1), before)
    source = entry
    if not spec.strided:
        source = steps.max_pool("pool", entry, _positions(spec, level))
    _twice(steps, spec, source, level, (wide, wide), _level(level))
    return steps.block(f"down{level}", entry)


def _up(spec: UnetSpec, level: int) -> Block:
    steps, wide = _steps(spec), spec.features_at(level)
    below, under = spec.features_at(level + 1), _positions(spec, level + 1)
    entry = steps.given("layer_in", below, under)
    skip = steps.given("skip", wide, _positions(spec, level))
    skip = feature_map(f"{_level(level)}_out", skip.dims[-1], round(skip.copies))
    made = steps.transposed("up", entry, wide, 2**spec.dimensions)
    joined = steps.joined("joined", made, skip)
    inside = wide
    if spec.strided:
        inside = below
        positions = _positions(spec, level)
        joined = steps.convolution("narrowed", joined, inside, positions, bias=True)
    _twice(steps, spec, joined, level, (wide, wide), f"up{level}")
    return steps.block(f"up{level}", entry, (skip,))


def _last(spec: UnetSpec) -> Block:
    """LAMP's last way up, to all positions; others have nothing more."""
    steps = _steps(spec)
    entry = steps.given("layer_in", spec.features, _positions(spec, 0))
    if spec.strided:
        made = steps.transposed("up", entry, _narrowest(spec), 2**spec.dimensions)
        steps.relu("last_relu", made, keeps=made)
    return steps.block("final_norm", entry)


def _narrowest(spec: UnetSpec) -> int:
    return min(spec.features // 2, NARROWEST) if spec.strided else spec.features


def _head(spec: UnetSpec) -> Block:
    steps, positions = _steps(spec), int(spec.image_size**spec.dimensions)
    entry = steps.given("layer_in", _narrowest(spec), positions)
    window = _window(spec) if spec.strided else 1
    wide = (spec.classes, positions, window)
    logits = steps.convolution("logits", entry, *wide, bias=True)
    steps.loss(logits)
    return steps.block("head", entry)
