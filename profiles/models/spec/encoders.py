"""`EncoderDecoderSpec` and `BertSpec`: encoders, with a decoder behind or alone."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InvalidSpec
from profiles.models.spec.sizes import PlainTransformer, Sized, one_of, share


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoderSpec(Sized):
    """T5 and its like: an encoder and a decoder that attends to it, both with learned
    biases of relative positions, in `relative_buckets`, and products without biases.

    The tokens of a job are the encoder's; a decoder has `decoder_seq_len` for them.
    """

    encoder_layers: int
    decoder_layers: int
    hidden: int
    heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    gated_mlp: bool = False
    activation: str = "relu"
    norm: str = "rmsnorm"
    tied_embeddings: bool = True
    relative_buckets: int = 32
    dropout: float = 0.0
    decoder_seq_len: int = 512
    family: str = "encoder-decoder"

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        one_of(self, "norm", ("layernorm", "rmsnorm"))
        share(self, "dropout")

    @property
    def own_length(self) -> None:
        """Tokens that a sequence always has: any number."""

    @property
    def longest(self) -> None:
        """The most tokens of a sequence: any number."""

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def norm_bias(self) -> bool:
        return False

    @property
    def mlp_bias(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class BertSpec(PlainTransformer):
    """BERT, RoBERTa and ALBERT: an encoder that predicts masked words, and with
    `next_sentence` whether two sentences follow each other.

    `shared_layers` in a row use one set of weights. `embedding_rank` is the width of
    ALBERT's tables, which a product widens; `segments` are rows of the table of them.
    """

    layers: int
    hidden: int
    heads: int
    ffn_hidden: int
    vocab: int
    max_positions: int = 512
    embedding_rank: int | None = None
    shared_layers: int = 1
    segments: int = 2
    next_sentence: bool = True
    activation: str = "gelu"
    dropout: float = 0.0
    family: str = "bert"

    def __post_init__(self) -> None:
        PlainTransformer.__post_init__(self)
        share(self, "dropout")
        if self.layers % self.shared_layers:
            raise InvalidSpec(
                f"layers={self.layers} is not a multiple of "
                f"shared_layers={self.shared_layers}"
            )

    @property
    def own_length(self) -> None:
        """Tokens that a sequence always has: any number."""

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return self.max_positions

    @property
    def table_width(self) -> int:
        """Of the tables of words, positions and segments."""
        return self.embedding_rank or self.hidden
