"""`ClipSpec` and `VisionLanguageSpec`: a vision transformer beside a model of text."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.models.spec.decoder import DecoderSpec
from profiles.models.spec.sizes import PlainTransformer, Sized
from profiles.models.spec.vision import VitSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSpec(PlainTransformer):
    """Two towers whose outputs are compared (Radford et al., ICML 2021): a causal
    transformer of a text's tokens, and one of an image; a sequence is a text of
    `positions` tokens with its image.
    """

    layers: int
    hidden: int
    heads: int
    ffn_hidden: int
    vocab: int
    vision: VitSpec
    projection: int
    positions: int = 77
    activation: str = "gelu"
    family: str = "clip"

    def __post_init__(self) -> None:
        PlainTransformer.__post_init__(self)

    @property
    def own_length(self) -> int:
        """Tokens of a text."""
        return self.positions

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return self.positions

    @property
    def dropout(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionLanguageSpec(Sized):
    """A vision transformer, a projector of its patches, and a decoder that reads them
    among its tokens (LLaVA, Liu et al., NeurIPS 2023), all of them trained.

    A sequence of the decoder holds `images`, whose patches are tokens of it. The
    projector has so many products, with a function between them.
    """

    vision: VitSpec
    text: DecoderSpec
    projector_layers: int = 2
    images: int = 1
    family: str = "vision-language"

    @property
    def own_length(self) -> None:
        """Tokens that a sequence always has: any number."""

    @property
    def longest(self) -> int | None:
        """The most tokens of a sequence; None: any number."""
        return self.text.longest
