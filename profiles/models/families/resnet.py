"""Residual networks as operator graphs (He et al., CVPR 2016).

bottleneck     1×1, 3×3 (with the stride, as torchvision has it), 1×1 to four times
               the channels
basic          3×3 (with the stride), 3×3
preactivated   norm and function before each convolution (Zagoruyko and Komodakis)
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.models.families.convolution import Steps
from profiles.models.graph import Block, ModelGraph, Tensor
from profiles.models.spec import BOTTLENECK, ResnetSpec

WIDENED = 4  # a bottleneck's output over its base


def resnet_graph(spec: ResnetSpec, name: str) -> ModelGraph:
    """The graph of a classifier: a block of layers is a numbered layer."""
    body: list[tuple[Block, int]] = []
    channels, side = spec.base_channels, _stem_side(spec)
    for number, count in enumerate(spec.blocks):
        stage = _Stage.of(spec, number, side)
        body.append((_layer(stage, f"stage{number + 1}-first", channels, side), 1))
        channels, side = stage.made, stage.side
        if count > 1:
            body.append(
                (_layer(stage, f"stage{number + 1}", channels, side), count - 1)
            )
    return ModelGraph(
        name=name,
        blocks=(
            (_stem(spec), 1),
            *body,
            (_pooled(spec, channels, side), 1),
            (_head(spec, channels), 1),
        ),
    )


def _stem_side(spec: ResnetSpec) -> int:
    """Positions a side after the stem."""
    return -(-spec.image_size // (4 if spec.stem == "imagenet" else 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """What the layers of a stage make: channels inside and at their end, positions a
    side."""

    spec: ResnetSpec
    first: int
    second: int
    made: int
    side: int

    @classmethod
    def of(cls, spec: ResnetSpec, number: int, side: int) -> _Stage:
        """The stage of that *number*, after one with so many positions a *side*."""
        base: int = spec.base_channels * 2**number
        wide = round(base * spec.width)
        return cls(
            spec=spec,
            first=base if spec.widens == "middle" else wide,
            second=wide,
            made=(wide if spec.widens == "outer" else base)
            * (WIDENED if spec.block == BOTTLENECK else 1),
            side=side if number == 0 else -(-side // 2),
        )


def _stem(spec: ResnetSpec) -> Block:
    steps, channels = Steps(), spec.base_channels
    image = steps.given("image", spec.channels, spec.image_size**2)
    if spec.stem == "cifar":
        made = steps.convolution(
            "stem", image, channels, spec.image_size**2, 9, first=True
        )
        if not spec.preactivated:
            steps.relu("stem_relu", steps.batch_norm("stem_norm", made))
        return steps.block("embedding", None)
    half = -(-spec.image_size // 2)
    made = steps.convolution("stem", image, channels, half**2, 49, first=True)
    active = steps.relu("stem_relu", steps.batch_norm("stem_norm", made))
    steps.max_pool("stem_pool", active, _stem_side(spec) ** 2, window=3)
    return steps.block("embedding", None)


def _layer(stage: _Stage, name: str, channels: int, side: int) -> Block:
    """A layer after one of so many *channels* and positions a *side*."""
    steps, spec = Steps(), stage.spec
    entry = steps.given("layer_in", channels, side**2)
    changes = channels != stage.made or side != stage.side
    if spec.preactivated:
        _preactivated(steps, stage, entry, changes)
    else:
        _plain(steps, stage, entry, changes)
    return steps.block(name, entry)


def _plain(steps: Steps, stage: _Stage, entry: Tensor, changes: bool) -> None:
    """Convolutions with a norm each, and a function after all but the last; the sum
    has one too."""
    made, before, after = entry, round(entry.copies), stage.side**2
    if stage.spec.block == BOTTLENECK:
        sizes = [
            (stage.first, before, 1),
            (stage.second, after, 9),
            (stage.made, after, 1),
        ]
    else:
        sizes = [(stage.made, after, 9), (stage.made, after, 9)]
    for number, size in enumerate(sizes, 1):
        made = steps.convolution(f"conv{number}", made, *size)
        made = steps.batch_norm(f"norm{number}", made)
        if number < len(sizes):
            made = steps.relu(f"relu{number}", made)
    skip = entry
    if changes:
        skip = steps.convolution("shortcut", entry, stage.made, after)
        skip = steps.batch_norm("shortcut_norm", skip)
    steps.relu("relu", steps.added("residual", made, skip), last=True)


def _preactivated(steps: Steps, stage: _Stage, entry: Tensor, changes: bool) -> None:
    """A norm and a function before each of two convolutions; where the width changes,
    before the shortcut too."""
    after = stage.side**2
    first = steps.relu("relu1", steps.batch_norm("norm1", entry))
    made = steps.convolution("conv1", first, stage.made, after, 9)
    made = steps.relu("relu2", steps.batch_norm("norm2", made))
    made = steps.convolution("conv2", made, stage.made, after, 9)
    skip = entry
    if changes:
        skip = steps.convolution("shortcut", first, stage.made, after)
    steps.added("residual", made, skip)


def _pooled(spec: ResnetSpec, channels: int, side: int) -> Block:
    steps = Steps()
    made = entry = steps.given("layer_in", channels, side**2)
    if spec.preactivated:
        made = steps.relu("final_relu", steps.batch_norm("final_norm", entry))
    steps.mean("pooled", made)
    return steps.block("final_norm", entry)


def _head(spec: ResnetSpec, channels: int) -> Block:
    steps = Steps()
    entry = steps.given("pooled_out", channels, 1)
    steps.classified(entry, spec.classes)
    return steps.block("head", entry)
