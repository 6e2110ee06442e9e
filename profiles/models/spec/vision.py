"""`VitSpec`, `ResnetSpec` and `UnetSpec`: networks over images and volumes."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InvalidSpec
from profiles.limits import require
from profiles.models.spec.sizes import PlainTransformer, Sized, one_of, share

BOTTLENECK, BASIC = "bottleneck", "basic"


@dataclass(frozen=True, slots=True, kw_only=True)
class VitSpec(PlainTransformer):
    """A vision transformer over square patches; a sequence is an image, a token for
    each patch and one for its class. It has the norms, products and biases of BERT.

    With `pre_norm` the embedding has a norm of its own (CLIP); a patch's product has a
    bias unless `patch_bias` is off.
    """

    layers: int
    hidden: int
    heads: int
    ffn_hidden: int
    image_size: int
    patch_size: int
    channels: int = 3
    classes: int = 1000
    activation: str = "gelu"
    pre_norm: bool = False
    patch_bias: bool = True
    dropout: float = 0.0
    family: str = "vit"

    def __post_init__(self) -> None:
        PlainTransformer.__post_init__(self)
        share(self, "dropout")
        if self.image_size % self.patch_size:
            raise InvalidSpec(
                f"image_size={self.image_size} is not a multiple of "
                f"patch_size={self.patch_size}"
            )

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def own_length(self) -> int:
        """Tokens of an image: its patches, and one of its class."""
        return self.patches + 1

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return self.own_length


@dataclass(frozen=True, slots=True, kw_only=True)
class ResnetSpec(Sized):
    """A residual network: so many `blocks` a stage, each stage with twice the channels
    of the one before and half of its positions a side; a sequence is one token, an
    image.

    A `bottleneck` block has three convolutions, a `basic` one two. `width` times as
    wide are `inner` the first two of a bottleneck (torchvision), `middle` its second
    alone (Alpa), `outer` all that a stage makes (Zagoruyko and Komodakis, 2016, whose
    blocks are `preactivated`). The `stem` is that for ImageNet, which leaves a quarter
    of the positions a side, or for CIFAR.
    """

    blocks: tuple[int, ...]
    block: str = BOTTLENECK
    base_channels: int = 64
    width: float = 1.0
    widens: str = "inner"
    preactivated: bool = False
    stem: str = "imagenet"
    image_size: int = 224
    channels: int = 3
    classes: int = 1000
    family: str = "resnet"

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        require("width", self.width, "width")
        one_of(self, "block", (BOTTLENECK, BASIC))
        one_of(self, "widens", ("inner", "middle", "outer"))
        one_of(self, "stem", ("imagenet", "cifar"))
        for blocks in self.blocks or (0,):
            require("layers", blocks, "the blocks of a stage")
        if len(self.blocks) > 30:
            raise InvalidSpec(
                f"a residual network has up to 30 stages, got {len(self.blocks)}"
            )
        if self.block == BASIC and self.widens != "outer" and self.width != 1:
            raise InvalidSpec(
                f"width={self.width:g} of basic blocks goes with widens='outer'"
            )

    @property
    def own_length(self) -> int:
        """Tokens of an image."""
        return 1

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UnetSpec(Sized):
    """A (2-D or 3-D) U-Net: `features` channels doubled at each of `depth` levels, up
    to `most_features`, and back up, each level beside what was made on the way down;
    a sequence is one token, an image or volume of `image_size` a side.

    `strided` ones go down by convolutions of stride 2, from the first on (LAMP, Zhu et
    al., 2020); others by pooling (Ronneberger et al., 2015), with batch norms.
    """

    depth: int
    features: int
    dimensions: int
    image_size: int
    channels: int = 1
    classes: int = 2
    strided: bool = False
    most_features: int = 1024
    family: str = "unet"

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        if self.dimensions not in (2, 3) or self.depth > 30:
            raise InvalidSpec(
                "a U-Net has dimensions 2 or 3 and depth <= 30, got "
                f"dimensions={self.dimensions} depth={self.depth}"
            )
        halved = 2 ** (self.depth + self.strided)
        if self.image_size % halved:
            raise InvalidSpec(
                f"image_size={self.image_size} is not a multiple of {halved}, as "
                f"depth={self.depth} halves it"
            )

    @property
    def own_length(self) -> int:
        """Tokens of an image or volume."""
        return 1

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return 1

    def features_at(self, level: int) -> int:
        """Channels at a *level*, 0 the top."""
        return int(
            min(self.features * 2**level, max(self.most_features, self.features))
        )
