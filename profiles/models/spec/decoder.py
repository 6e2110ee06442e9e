"""`DecoderSpec`: the shape of a decoder, and those of its parts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Final

from profiles.errors import InvalidSpec
from profiles.limits import require
from profiles.models.spec.sizes import Sized, above_zero, one_of

SCALINGS = ("linear", "llama3")
ROUTINGS = ("softmax", "sigmoid")
RECURRENCES = ("mamba-1", "mamba-2", "gated-delta", "linear")
RECURRENT, FULL, SLIDING, DENSE, EXPERTS = "M*S-E"  # symbols of a pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling(Sized):
    """Rotary frequencies of a longer context than was trained first.

    linear   all are divided by `factor` (Chen et al., arXiv 2306.15595, section 2)
    llama3   those whose wave is longer than `original_positions / low_freq_factor`
             are, those shorter than `original_positions / high_freq_factor` are not,
             and between them it goes over (`ROPE_INIT_FUNCTIONS` of transformers)
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        if self.kind not in SCALINGS:
            raise InvalidSpec(
                f"rope_scaling {self.kind!r} is not one of {', '.join(SCALINGS)}"
            )
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            above_zero(self, name)
        if self.low_freq_factor >= self.high_freq_factor:
            raise InvalidSpec(
                f"low_freq_factor={self.low_freq_factor:g} must be below "
                f"high_freq_factor={self.high_freq_factor:g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics(Sized):
    """Constants and choices that change the loss and neither shapes nor prices.

    The defaults are what the catalogue's models are trained with. `not_computed` names
    what a configuration asks for beyond them: it is priced without, and not trained.
    """

    norm_epsilon: float = 1e-5
    exact_gelu: bool = False  # by erf; else its tanh approximation
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    unrotated_every: int = 0  # each so manieth layer is not turned (Llama 4)
    head_rms_norm: bool = False  # of turned queries and keys, no weights (Llama 4)
    # Queries, keys and values are at most so large (DBRX)
    qkv_clip: float | None = None
    attention_dropout: float = 0.0
    embedding_dropout: float | None = None  # None: as of the residuals
    routing: str = "softmax"  # or sigmoid, of each expert's score by itself
    # p of the norm by which a token's weights are divided; None: they stay as they are
    routing_norm: float | None = 1.0
    weighted_input: bool = False  # weights multiply what experts take, not make
    balance: float = 0.01  # α of the loss that keeps experts evenly busy
    longest: int | None = None  # tokens of plain attention (Llama 4's chunks)
    not_computed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        for name in (
            "norm_epsilon",
            "attention_dropout",
            "embedding_dropout",
            "balance",
        ):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise InvalidSpec(f"{name} must be in [0, 1), got {value:g}")
        for name in ("rope_theta", "qkv_clip", "routing_norm"):
            if getattr(self, name) is not None:
                above_zero(self, name)
        one_of(self, "routing", ROUTINGS)

    def turns(self, layer: int) -> bool:
        """Whether the numbered *layer* of a rotary decoder turns queries and keys.

        >>> [Numerics(unrotated_every=4).turns(layer) for layer in range(4)]
        [True, True, True, False]
        """
        return not self.unrotated_every or (layer + 1) % self.unrotated_every > 0

    @property
    def document(self) -> dict[str, Any]:
        """What differs from the defaults, as JSON values."""
        usual = asdict(USUAL)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value != usual[name]
        }


USUAL: Final = Numerics()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement(Sized):
    """Where a decoder's norms and MLPs stand, if not as in GPT and Llama.

    `norms` stand before what a half of a layer computes, after it (OLMo 2) or on both
    sides (Gemma 2). `wide_qk_norm` norms queries and keys over all heads at once (OLMo
    2), `mlp_norm` is a parallel block's second norm (GPT-NeoX, Falcon 40B),
    `embedding_norm` one more behind the tables (Bloom), and with `mixers_alone` layers
    have no MLP (Mamba).
    """

    norms: str = "before"
    wide_qk_norm: bool = False
    mlp_norm: bool = False
    embedding_norm: bool = False
    mixers_alone: bool = False

    def __post_init__(self) -> None:
        one_of(self, "norms", ("before", "after", "both"))

    @property
    def unusual(self) -> tuple[str, ...]:
        """What differs from GPT and Llama, which nothing here trains."""
        beyond = {
            f"norms {self.norms}": self.norms != "before",
            "norms of all queries and keys at once": self.wide_qk_norm,
            "two norms of a parallel block": self.mlp_norm,
            "a norm of the embedding": self.embedding_norm,
            "layers without an MLP": self.mixers_alone,
        }
        return tuple(name for name, true in beyond.items() if true)


PLAIN: Final = Arrangement()


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec(Sized):
    """Experts in place of the dense MLP, in layers from `first_layer`, each `every`."""

    experts: int
    experts_per_token: int
    expert_ffn_hidden: int
    shared_experts: int = 0
    shared_ffn_hidden: int = 0
    first_layer: int = 0
    every: int = 1
    # Of an expert's mean rows, how many it takes of a sequence; None: whatever comes
    capacity_factor: float | None = None
    router_groups: int = 1  # experts in a row, as many in each
    groups_per_token: int | None = None  # that a token's experts lie in; None: any
    router_bias: bool = False
    shared_gate: bool = False  # the shared experts times σ(w · x) (Qwen2-MoE)
    latent: int = 0  # width in which rows are sent to experts; 0: all of `hidden`

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        if self.capacity_factor is not None:
            require("capacity", self.capacity_factor, "capacity_factor")
        if self.shared_experts and not self.shared_ffn_hidden:
            raise InvalidSpec(
                f"shared_experts={self.shared_experts} needs shared_ffn_hidden, the "
                "width of each"
            )
        if self.experts_per_token > self.experts:
            raise InvalidSpec(
                f"experts_per_token={self.experts_per_token} is more than the "
                f"{self.experts} experts"
            )
        if self.groups_per_token is not None:
            self._require_groups(self.groups_per_token)

    def _require_groups(self, chosen: int) -> None:
        groups, size = self.router_groups, self.experts // self.router_groups
        if self.experts % groups:
            raise InvalidSpec(
                f"router_groups={groups} does not divide the {self.experts} experts"
            )
        if not 1 <= chosen <= groups:
            raise InvalidSpec(
                f"groups_per_token={chosen} must be between 1 and "
                f"router_groups={groups}"
            )
        if self.experts_per_token > chosen * size:
            raise InvalidSpec(
                f"experts_per_token={self.experts_per_token} is more than the "
                f"{chosen * size} experts of groups_per_token={chosen} groups"
            )

    def capacity_of(self, tokens: int) -> int | None:
        """Rows that each expert takes of a sequence's *tokens*: ⌈factor · k · T / E⌉,
        of each token once (Switch Transformers, Fedus et al., 2022, section 2.2).

        >>> MoeSpec(experts=8, experts_per_token=2, expert_ffn_hidden=64,
        ...         capacity_factor=1.25).capacity_of(100)
        32
        """
        if self.capacity_factor is None:
            return None
        mean = self.experts_per_token * tokens / self.experts
        return min(ceil(self.capacity_factor * mean), tokens)

    def holds(self, layer: int) -> bool:
        """Whether the numbered *layer* has experts.

        >>> every_other = MoeSpec(experts=8, experts_per_token=1, expert_ffn_hidden=64,
        ...                       first_layer=1, every=2)
        >>> [every_other.holds(layer) for layer in range(4)]
        [False, True, False, True]
        """
        after = layer - self.first_layer
        return after >= 0 and after % self.every == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec(Sized):
    """Multi-head latent attention (DeepSeek-V2, section 2.1)."""

    kv_rank: int
    query_rank: int | None
    rope_head_dim: int
    nope_head_dim: int
    value_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceSpec(Sized):
    """A mixer of tokens that carries a state of `state` x `head_dim` a head along the
    sequence, so that its work grows with the length and not with its square.

    mamba-1      selective scan, each channel a head (Gu and Dao, arXiv 2312.00752)
    mamba-2      structured state space duality (Dao and Gu, arXiv 2405.21060)
    gated-delta  gated delta net (Yang et al., arXiv 2412.06464)
    linear       gated linear attention (MiniMax-01, arXiv 2501.08313, section 2.2)
    """

    kind: str
    heads: int
    head_dim: int  # of a value
    state: int  # of a key
    groups: int = 1  # heads of keys, each shared by as many of the values'
    conv_width: int = 0  # of the causal convolution before it
    conv_bias: bool = False
    chunk: int = 256  # tokens between which products stand for the recurrence
    dt_rank: int = 0  # of mamba-1's step sizes
    dt_norms: bool = False  # of step sizes, B and C (Jamba)

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        one_of(self, "kind", RECURRENCES)
        if self.heads % self.groups:
            raise InvalidSpec(
                f"recurrence heads={self.heads} is not a multiple of "
                f"groups={self.groups}"
            )
        if (self.kind == "mamba-1") != bool(self.dt_rank):
            raise InvalidSpec(f"dt_rank={self.dt_rank}: mamba-1 alone has one, above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec(Sized):
    """A decoder-only network: GPT, Llama, Mistral, Qwen, DeepSeek, Nemotron-H …

    `pattern` has a symbol a layer, over and over: `M` recurrence, `*` attention, `S`
    attention in the window, `-` MLP, `E` experts, as Megatron-Core writes hybrid
    models. Where it has `-` or `E`, each symbol is a layer of its own, with one norm;
    else an MLP (or experts, as `moe` says) stands behind each.
    """

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
    norm_bias: bool = True  # of a layernorm
    qk_norm: bool = False
    position: str = "learned"  # or rotary, alibi, none
    max_positions: int = 0  # rows of a learned position table
    attention_bias: bool = True
    attention_sinks: bool = False  # a learned logit a head (gpt-oss)
    output_bias: bool = True  # of the attention's output projection
    mlp_bias: bool = True
    tied_embeddings: bool = True
    dropout: float = 0.0
    window: int | None = None  # sliding-window attention
    window_every: int = 1  # the window is in each so manieth layer, from the first
    parallel_block: bool = False  # attention and MLP side by side (GPT-J, PaLM)
    multi_token_heads: int = 0  # DeepSeek-V3's extra prediction layers
    pattern: str = ""
    attention_gate: bool = False  # its output times σ of one more product (Qwen3-Next)
    recurrence: RecurrenceSpec | None = None
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    numerics: Numerics = USUAL
    arrangement: Arrangement = PLAIN
    family: str = "decoder"

    @property
    def own_length(self) -> None:
        """Tokens that a sequence always has: any number."""

    @property
    def longest(self) -> int | None:
        """The most tokens of a sequence; None: any number."""
        return self.max_positions if self.position == "learned" else None

    @property
    def splits_layers(self) -> bool:
        """Whether a mixer and the MLP behind it are layers of their own."""
        return DENSE in self.pattern or EXPERTS in self.pattern

    def mixer(self, layer: int) -> str:
        """How the numbered *layer* mixes tokens, as a symbol; "" if it does not."""
        if self.pattern:
            symbol = self.pattern[layer % len(self.pattern)]
            return "" if symbol in (DENSE, EXPERTS) else symbol
        windowed = self.window_every > 1 and layer % self.window_every == 0
        return SLIDING if windowed else FULL

    def mlp(self, layer: int) -> str:
        """What of an MLP the numbered *layer* has, as a symbol; "" if it has none."""
        if self.arrangement.mixers_alone:
            return ""
        if self.splits_layers:
            symbol = self.pattern[layer % len(self.pattern)]
            return symbol if symbol in (DENSE, EXPERTS) else ""
        return EXPERTS if self.moe is not None and self.moe.holds(layer) else DENSE

    @property
    def predicting(self) -> tuple[str, str]:
        """Mixer and MLP of the layer that predicts one more token: the last one's, or
        attention and the pattern's MLP (Nemotron 3, `mtp_hybrid_override_pattern`)."""
        if self.splits_layers:
            return FULL, EXPERTS if EXPERTS in self.pattern else DENSE
        return self.mixer(self.layers - 1), self.mlp(self.layers - 1)

    @property
    def has_dense_mlp(self) -> bool:
        """Whether any layer has an MLP that every token takes and no experts."""
        if self.splits_layers or self.arrangement.mixers_alone:
            return DENSE in self.pattern
        moe = self.moe
        return moe is None or moe.first_layer > 0 or moe.every > 1

    @property
    def not_computed(self) -> tuple[str, ...]:
        """What of it is priced, and not trained."""
        return (*self.numerics.not_computed, *self.arrangement.unusual)

    @property
    def reach(self) -> int | None:
        """The longest sequence of which every token sees all before it; None: any."""
        known = [one for one in (self.window, self.numerics.longest) if one]
        return min(known, default=None)

    @property
    def embedding_dropout(self) -> float:
        """The share of the embedding's output that is dropped."""
        own = self.numerics.embedding_dropout
        return self.dropout if own is None else own

    @property
    def most_dropped(self) -> float:
        """The largest share that is dropped anywhere; 0 draws no random numbers."""
        attention = self.numerics.attention_dropout
        return max(self.dropout, self.embedding_dropout, attention)

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        if self.moe is not None and self.moe.first_layer >= self.layers:
            raise InvalidSpec(
                f"first_layer={self.moe.first_layer} of the experts is not one of the "
                f"{self.layers} layers; leave moe out for a dense model"
            )
        if not 0 <= self.dropout < 1:
            raise InvalidSpec(f"dropout must be in [0, 1), got {self.dropout}")
        if self.heads % self.kv_heads:
            raise InvalidSpec(
                f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}"
            )
        if self.position == "learned" and self.max_positions < 1:
            raise InvalidSpec("a learned position table needs max_positions >= 1")
        one_of(self, "norm", ("layernorm", "rmsnorm"))
        one_of(self, "position", ("learned", "rotary", "alibi", "none"))
        self._require_numerics(self.numerics)
        self._require_pattern()

    def _require_pattern(self) -> None:
        symbols, needed = (
            set(self.pattern),
            (
                (RECURRENT, "recurrence", self.recurrence),
                (SLIDING, "window", self.window),
                (EXPERTS, "moe", self.moe),
            ),
        )
        foreign = sorted(symbols - set("M*S-E"))
        if foreign:
            raise InvalidSpec(
                f"pattern has {', '.join(map(repr, foreign))}; its symbols are M "
                "(recurrence), * (attention), S (attention in the window), - (MLP) and "
                "E (experts)"
            )
        for symbol, name, given in needed:
            if symbol in symbols and given is None:
                raise InvalidSpec(f"pattern has {symbol!r}, which needs {name}")
        if self.recurrence is not None and RECURRENT not in symbols:
            raise InvalidSpec("recurrence needs a pattern that says where it is: M")
        mixes = self.arrangement.mixers_alone and self.splits_layers
        if mixes:
            raise InvalidSpec("mixers_alone goes with no pattern that names MLPs")
        if symbols and (self.window_every > 1 or self.parallel_block):
            raise InvalidSpec(
                "pattern goes with neither window_every nor parallel_block"
            )

    def _require_numerics(self, given: Numerics) -> None:
        plain = self.qk_norm or given.unrotated_every or self.position != "rotary"
        if given.qkv_clip is not None and plain:
            raise InvalidSpec(
                "qkv_clip is of decoders whose layers are all rotary, without qk_norm"
            )
        if given.weighted_input and self.moe and self.moe.capacity_factor is not None:
            raise InvalidSpec("weighted_input is of experts without a capacity_factor")
