"""Model specs: the shape of a network, with no decision in it.

One dataclass a family; `family` in a spec file says which. Sizes are counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InvalidSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """Experts in place of the dense MLP, in layers from `first_layer`, each `every`."""

    experts: int
    experts_per_token: int
    expert_ffn_hidden: int
    shared_experts: int = 0
    shared_ffn_hidden: int = 0
    first_layer: int = 0
    every: int = 1
    capacity_factor: float | None = None  # None: no token is dropped
    router_groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """Multi-head latent attention (DeepSeek-V2, section 2.1)."""

    kv_rank: int
    query_rank: int | None
    rope_head_dim: int
    nope_head_dim: int
    value_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder-only transformer: GPT, Llama, Mistral, Qwen, DeepSeek …"""

    layers: int
    hidden: int
    heads: int
    vocab: int
    ffn_hidden: int
    kv_heads: int
    head_dim: int
    gated_mlp: bool = False
    activation: str = "gelu"
    norm: str = "layernorm"  # or rmsnorm
    qk_norm: bool = False
    position: str = "learned"  # or rotary, alibi, none
    max_positions: int = 0  # rows of a learned position table
    attention_bias: bool = True
    output_bias: bool = True  # of the attention's output projection
    mlp_bias: bool = True
    tied_embeddings: bool = True
    dropout: float = 0.0
    window: int | None = None  # sliding-window attention
    parallel_block: bool = False  # attention and MLP side by side (GPT-J, PaLM)
    multi_token_heads: int = 0  # DeepSeek-V3's extra prediction layers
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    family: str = "decoder"

    def __post_init__(self) -> None:
        _positive(self, "layers hidden heads vocab ffn_hidden kv_heads head_dim")
        if self.heads % self.kv_heads:
            raise InvalidSpec(
                f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}"
            )
        if self.position == "learned" and self.max_positions < 1:
            raise InvalidSpec("a learned position table needs max_positions >= 1")
        _one_of("norm", self.norm, ("layernorm", "rmsnorm"))
        _one_of("position", self.position, ("learned", "rotary", "alibi", "none"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoderSpec:
    """T5-like: an encoder and a decoder that attends to it."""

    encoder_layers: int
    decoder_layers: int
    hidden: int
    heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    gated_mlp: bool = False
    norm: str = "rmsnorm"
    tied_embeddings: bool = True
    decoder_seq_len: int = 512
    family: str = "encoder-decoder"


@dataclass(frozen=True, slots=True, kw_only=True)
class BertSpec:
    """BERT, RoBERTa and ALBERT: `shared_layers` layers use one set of weights."""

    layers: int
    hidden: int
    heads: int
    ffn_hidden: int
    vocab: int
    max_positions: int = 512
    embedding_rank: int | None = None  # ALBERT's factorised embedding
    shared_layers: int = 1  # layers that share one set of parameters
    family: str = "bert"


@dataclass(frozen=True, slots=True, kw_only=True)
class VitSpec:
    """A vision transformer over square patches."""

    layers: int
    hidden: int
    heads: int
    ffn_hidden: int
    image_size: int
    patch_size: int
    channels: int = 3
    classes: int = 1000
    family: str = "vit"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnetSpec:
    """A (2-D or 3-D) U-Net: `features` channels doubled at each of `depth` levels."""

    depth: int
    features: int
    dimensions: int
    image_size: int
    channels: int = 1
    classes: int = 2
    family: str = "unet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResnetSpec:
    """A residual network: bottleneck `blocks` a stage, `width` times as wide."""

    blocks: tuple[int, ...]
    width: float = 1.0
    image_size: int = 224
    classes: int = 1000
    family: str = "resnet"


ModelSpec = (
    DecoderSpec | EncoderDecoderSpec | BertSpec | VitSpec | UnetSpec | ResnetSpec
)
FAMILIES: dict[str, type[ModelSpec]] = {
    "decoder": DecoderSpec,
    "encoder-decoder": EncoderDecoderSpec,
    "bert": BertSpec,
    "vit": VitSpec,
    "unet": UnetSpec,
    "resnet": ResnetSpec,
}


def _positive(spec: object, names: str) -> None:
    for name in names.split():
        value = getattr(spec, name)
        if not 1 <= value <= 10**9:
            raise InvalidSpec(f"{name} must be between 1 and 10^9, got {value}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidSpec(f"{name}={value!r} is not one of {', '.join(allowed)}")
