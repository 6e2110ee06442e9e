"""The model that a row names: by its shape, else by a catalogue name.

shape   layers, hidden and heads are given; the rest by the convention of the
        family: with a gated MLP a Llama (RMSNorm, rotary positions, no biases),
        else a GPT (layer norm, learned positions, biases)
name    the catalogue's spec, with whatever cells the row has in its place; so of a
        hybrid model, whose kinds of layers no column tells

The adapters of a fine-tuning run (task=lora): what its framework's recipe trains.

The experts and the latent attention that a row tells of.

Columns hold how many experts there are, how wide, and which layers have none; what no
column holds (which layers after those, the ranks of latents) is the catalogue's, of the
model that the row's name begins with, else DeepSeek's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from costmodel.runs.cells import Cells
from profiles.errors import MeshwrightError, UnknownName, Unsupported
from profiles.models import (
    ATTENTION,
    LINEAR_LAYERS,
    QUERY_KEY_VALUE,
    Adapters,
    DecoderSpec,
    MlaSpec,
    ModelSpec,
    MoeSpec,
    model,
    names,
)

# MLPerf Training's benchmark rules: rank 16 on the attention's two products
# (llama2_70b_lora, reference implementation).
_MLPERF: Final = Adapters(rank=16, targets=ATTENTION)
# NeMo's and Megatron-Bridge's recipes for performance: dim=8, target_modules
# linear_qkv alone (their fine-tuning recipes, `performance_mode`).
_NEMO: Final = Adapters(rank=8, targets=QUERY_KEY_VALUE)
# Elsewhere every linear layer, as QLoRA has it (Dettmers et al., 2023, section 4).
_OTHERS: Final = Adapters(rank=16, targets=LINEAR_LAYERS)
_RECIPES: Final = (("mlperf", _MLPERF), ("nemo", _NEMO), ("bridge", _NEMO))


def adapters_of(cells: Cells) -> Adapters | None:
    """What is trained beside frozen weights; None where everything is."""
    if cells.word("task") != "lora":
        return None
    framework = (cells.word("framework") or "").lower()
    found = next((one for name, one in _RECIPES if name in framework), _OTHERS)
    cells.assumed["lora_rank"] = found.rank
    cells.assumed["lora_targets"] = ",".join(found.targets)
    return found


ATTENTIONS: Final = ("mha", "gqa", "mqa", "mla")
# Of DeepSeek-V2 and V3 alike (arXiv 2405.04434, section 3.1.2; 2412.19437, 4.2).
LATENT: Final = MlaSpec(
    kv_rank=512,
    query_rank=1536,
    rope_head_dim=64,
    nope_head_dim=128,
    value_head_dim=128,
)
_CELLS: Final = ("experts", "experts_per_token", "expert_ffn_hidden", "shared_experts")


def experts_of(cells: Cells) -> MoeSpec | None:
    """The experts of a row that gives its shape; None for a dense model.

    Raises InvalidSpec naming the missing cell.
    """
    every = cells.whole("experts", least=0)
    if not every:
        if cells.word("kind") == "moe":
            raise cells.missing("experts", "a mixture's experts must be counted")
        return None
    width, kin = cells.needed("expert_ffn_hidden"), kin_of(cells)
    shared = cells.given("shared_experts", cells.whole("shared_experts", least=0), 0)
    dense = cells.given("dense_layers", cells.whole("dense_layers", least=0), 0)
    known = kin.moe if kin is not None and kin.moe is not None else None
    return MoeSpec(
        experts=every,
        experts_per_token=cells.needed("experts_per_token"),
        expert_ffn_hidden=width,
        shared_experts=shared,
        shared_ffn_hidden=width if shared else 0,
        first_layer=dense or (known.every - 1 if known else 0),
        every=known.every if known else 1,
        router_groups=known.router_groups if known else 1,
    )


def latent_of(cells: Cells) -> MlaSpec | None:
    """The latent attention of a row; None where it has another one."""
    if cells.choice("attention", ATTENTIONS) != "mla":
        return None
    kin = kin_of(cells)
    found = kin.mla if kin is not None and kin.mla is not None else LATENT
    cells.assumed["mla"] = f"kv_rank {found.kv_rank}, query_rank {found.query_rank}"
    return found


def overridden_experts(cells: Cells, known: MoeSpec | None) -> MoeSpec | None:
    """*known* experts with the row's own cells in place."""
    found = {name: cells.whole(name, least=0) for name in _CELLS}
    given: dict[str, Any] = {name: n for name, n in found.items() if n is not None}
    dense = cells.whole("dense_layers", least=0)
    if known is None or (not given and dense is None):
        return known
    if dense:
        given["first_layer"] = dense
    if "expert_ffn_hidden" in given and (known.shared_experts or given.get(_CELLS[3])):
        given["shared_ffn_hidden"] = given["expert_ffn_hidden"]
    return replace(known, **given)


def kin_of(cells: Cells) -> DecoderSpec | None:
    """The decoder of the catalogue whose name the row's model begins with."""
    return _kin(spelled(cells.word("model") or ""))


@lru_cache(maxsize=1024)
def _kin(name: str) -> DecoderSpec | None:
    fitting = [one for one in names() if f"{name}-".startswith(f"{one}-")]
    try:
        spec = model(max(fitting, key=len, default=name)).spec
    except MeshwrightError:
        return None
    return spec if isinstance(spec, DecoderSpec) else None


def spelled(name: str) -> str:
    """A model's name as the catalogue writes it.

    >>> spelled("Qwen3_30B_a3B")
    'qwen3-30b-a3b'
    """
    return name.lower().replace(" ", "-").replace("_", "-")


MOST_LAYERS: Final = 10_000
SHAPE: Final = ("layers", "hidden", "heads")
GPT_VOCAB: Final = 51_200  # GPT-2's 50,257 tokens, padded to 128 · 8 (Megatron-LM)
LLAMA_VOCAB: Final = 32_000  # Llama 2 (Touvron et al., 2023, section 2.2)
KINDS: Final = ("dense", "moe", "hybrid", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A model of the catalogue, and the sequence length it is trained with."""

    spec: ModelSpec
    seq_len: int


def spec_of(cells: Cells, *, seq_len: int, dropout: float) -> ModelSpec:
    """What the row is about: a decoder, or another model of the catalogue by name;
    *dropout* is what its framework defaults to.

    Raises InvalidSpec naming the missing cell, Unsupported for what is not priced.
    """
    if _kind(cells) == "hybrid":
        return _overridden(cells, _hybrid(cells), seq_len)
    missing = [name for name in SHAPE if cells.word(name) is None]
    if not missing:
        return _shaped(cells, seq_len, dropout)
    known = catalogued(cells.word("model"))
    if known is None:
        raise cells.missing(
            missing[0],
            f"the catalogue has no model {cells.word('model') or ''!r} to take it "
            f"from: fill in {', '.join(SHAPE)}, or name a catalogue model",
        )
    if not isinstance(known.spec, DecoderSpec):
        return known.spec
    return _overridden(cells, known.spec, seq_len)


def seq_len_of(cells: Cells) -> int:
    """The row's sequence length, or the one its catalogue model is trained with.

    Raises InvalidSpec naming the missing cell.
    """
    found = cells.whole("seq_len")
    if found is None and not any(cells.word(name) for name in SHAPE):
        known = catalogued(cells.word("model"))
        if known is not None:
            return cells.given("seq_len", None, known.seq_len)
    return cells.needed("seq_len")


def _kind(cells: Cells) -> str | None:
    kind = cells.choice("kind", KINDS)
    if kind == "other":
        raise Unsupported(
            f"kind={kind}: layers other than attention, recurrences, MLP and experts "
            "are not priced yet; decoders are"
        )
    return kind


def _hybrid(cells: Cells) -> DecoderSpec:
    """The catalogue's model that the row's begins with, of layers of several kinds."""
    found = catalogued(cells.word("model"))
    spec = found.spec if found is not None else kin_of(cells)
    if not isinstance(spec, DecoderSpec) or not spec.pattern:
        raise Unsupported(
            f"kind=hybrid: no column says which layers have attention, and the "
            f"catalogue has no hybrid model {cells.word('model') or ''!r}; name one "
            "that it has, such as nemotron-h-8b"
        )
    return spec


@lru_cache(maxsize=1024)
def catalogued(name: str | None) -> Known | None:
    """The catalogue's model of that name, also written as people do: "GPT 13B"."""
    for spelling in (name, name and spelled(name)):
        if not spelling:
            continue
        try:
            found = model(spelling)
        except UnknownName:
            continue
        return Known(spec=found.spec, seq_len=found.seq_len)
    return None


def _shaped(cells: Cells, seq_len: int, dropout: float) -> DecoderSpec:
    hidden, heads = cells.needed("hidden"), cells.needed("heads")
    mixed = bool(cells.whole("experts", least=0))
    gated = cells.given("gated_mlp", cells.flag("gated_mlp"), mixed)
    sizes: dict[str, Any] = {
        "layers": cells.needed("layers", most=MOST_LAYERS),
        "hidden": hidden,
        "heads": heads,
        "vocab": cells.given(
            "vocab", cells.whole("vocab"), lambda: _vocab(cells, gated=gated)
        ),
        "ffn_hidden": _ffn_hidden(cells, hidden, gated=gated),
        "kv_heads": cells.given("kv_heads", cells.whole("kv_heads"), heads),
        "head_dim": _head_dim(cells, hidden, heads),
    }
    moe, mla = experts_of(cells), latent_of(cells)
    if moe is not None or mla is not None:
        return _mixture(cells, sizes, moe, mla, seq_len)
    tied = cells.given("tied_embeddings", cells.flag("tied_embeddings"), True)
    style = _LLAMA if gated else {**_GPT, "max_positions": seq_len, "dropout": dropout}
    if not gated:
        cells.assumed["dropout"] = dropout
    kin = kin_of(cells)
    if kin is not None and kin.parallel_block:
        style = {**style, "parallel_block": True}
        cells.assumed["parallel_block"] = True
    return DecoderSpec(**sizes, gated_mlp=gated, tied_embeddings=tied, **style)


def _mixture(
    cells: Cells,
    sizes: dict[str, Any],
    moe: MoeSpec | None,
    mla: MlaSpec | None,
    seq_len: int,
) -> DecoderSpec:
    """A decoder with experts or latent attention; what no column says of it is the
    catalogue's, of the model that the row's name begins with."""
    kin = kin_of(cells)
    style: dict[str, Any] = dict(_LLAMA)
    names = ("qk_norm", "multi_token_heads", *_LLAMA)
    if kin is not None:
        style = {name: getattr(kin, name) for name in names}
        cells.assumed.update({name: style[name] for name in names[:2] if style[name]})
        style["max_positions"] = max(kin.max_positions, seq_len)
    return DecoderSpec(
        **sizes,
        gated_mlp=cells.given("gated_mlp", cells.flag("gated_mlp"), True),
        tied_embeddings=cells.given(
            "tied_embeddings", cells.flag("tied_embeddings"), False
        ),
        moe=moe,
        mla=mla,
        **style,
    )


_LLAMA: Final[dict[str, Any]] = {
    "activation": "silu",
    "norm": "rmsnorm",
    "position": "rotary",
    "attention_bias": False,
    "output_bias": False,
    "mlp_bias": False,
}
_GPT: Final[dict[str, Any]] = {"norm": "layernorm", "position": "learned"}


def _vocab(cells: Cells, *, gated: bool) -> int:
    known = catalogued(cells.word("model"))
    if known is not None and isinstance(known.spec, DecoderSpec):
        return known.spec.vocab
    return LLAMA_VOCAB if gated else GPT_VOCAB


def _ffn_hidden(cells: Cells, hidden: int, *, gated: bool) -> int:
    """4 x hidden for a plain MLP (Megatron-LM's default); gated ones have no rule."""
    found = cells.whole("ffn_hidden")
    if found is None and cells.whole("experts", least=0):
        dense = cells.whole("dense_layers", least=0)
        if not dense:  # no layer has a dense MLP
            found = cells.whole("expert_ffn_hidden")
    if gated and found is None:
        raise cells.missing("ffn_hidden", "a gated MLP's width must be given")
    return cells.given("ffn_hidden", found, 4 * hidden)


def _head_dim(cells: Cells, hidden: int, heads: int) -> int:
    found = cells.whole("head_dim")
    if found is None and hidden % heads:
        raise cells.missing(
            "head_dim", f"hidden={hidden} is not a multiple of heads={heads}"
        )
    return found or hidden // heads


def _overridden(cells: Cells, known: DecoderSpec, seq_len: int) -> DecoderSpec:
    """*known* with the row's own cells in place; sizes that hang on hidden follow."""
    names = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab")
    sizes: dict[str, Any] = {name: cells.whole(name) for name in names}
    flags = {name: cells.flag(name) for name in ("gated_mlp", "tied_embeddings")}
    given = {k: v for k, v in {**sizes, **flags}.items() if v is not None}
    for name in (*names, *flags):
        if name not in given:
            cells.assumed[name] = getattr(known, name)
    given["moe"] = overridden_experts(cells, known.moe)
    if known.position == "learned":
        given["max_positions"] = max(known.max_positions, seq_len)
    return replace(known, **given)
