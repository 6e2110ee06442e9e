"""A decoder's shape as Megatron's arguments, in both directions.

Names are those of megatron/training/arguments.py (groups "network size",
"regularization", "moe" and "mla" of Megatron-LM, commit 000c4ac2 of November 2025), and
for Megatron-DeepSpeed of its megatron/arguments.py (commit 207b2d5a), which is of 2023.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any, Final

from costmodel.formats.fields import Fields
from costmodel.formats.shell import arguments
from costmodel.formats.text import words_of
from profiles.errors import InvalidFile, Unsupported
from profiles.models import DecoderSpec, Job, MlaSpec, MoeSpec, parse_model

Arguments = dict[str, Any]
USUAL_VOCAB: Final = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
DROPOUT: Final = 0.1  # of Megatron, where nobody says
_PATTERN: Final = re.compile(r"\[([01])\](?:\*(\d{1,6}))?")


def require_decoder(job: Job, target: str) -> DecoderSpec:
    """The job's spec; raises Unsupported for other families and for adapters."""
    spec = job.spec
    if not isinstance(spec, DecoderSpec) or job.adapters is not None:
        raise Unsupported(
            f"{target} is exported for decoders that are trained whole; {job.model} is "
            "of another kind"
        )
    return spec


def _lacks(spec: DecoderSpec, deepspeed: bool) -> Iterator[str]:
    """What no argument says."""
    numerics = spec.numerics
    if spec.pattern or spec.recurrence:
        yield "layers that differ in kind (pretrain_mamba.py trains them)"
    if spec.parallel_block:
        yield "attention and MLP side by side"
    if spec.window is not None or numerics.longest is not None:
        yield "attention in a window"
    if spec.attention_sinks or spec.attention_gate:
        yield "attention sinks or gates"
    if spec.position == "alibi":
        yield "ALiBi positions"
    if spec.norm == "layernorm" and not spec.norm_bias:
        yield "layer norms without bias"
    if (spec.activation, spec.gated_mlp) not in (
        ("gelu", False),
        ("silu", True),
        ("relu2", False),
    ):
        gated = "gated " if spec.gated_mlp else ""
        yield f"an MLP with {gated}{spec.activation}"
    if _biases(spec) is None:
        yield "biases in some linear layers alone"
    if deepspeed and (spec.mla or spec.multi_token_heads or spec.qk_norm):
        yield "latent attention, multi-token heads or query-key norms"
    if deepspeed and _biases(spec) == "qkv":
        yield "biases of queries, keys and values alone"
    scaling = numerics.rope_scaling
    if scaling is not None and (deepspeed or scaling.kind != "llama3"):
        yield "scaled rotary frequencies"


def _biases(spec: DecoderSpec) -> str | None:
    """`all`, `none`, `qkv`, or None for what has no argument."""
    found = (spec.attention_bias, spec.output_bias, spec.mlp_bias)
    return {
        (True, True, True): "all",
        (False, False, False): "none",
        (True, False, False): "qkv",
    }.get(found)


def shape_arguments(job: Job, target: str, *, deepspeed: bool = False) -> Arguments:
    """The shape of *job*'s model; raises Unsupported for what has no argument."""
    spec = require_decoder(job, target)
    lacks = [*_lacks(spec, deepspeed)]
    if spec.moe is not None:
        lacks += _lacks_of_experts(spec, spec.moe, deepspeed)
    if lacks:
        raise Unsupported(
            f"--export {target}: no argument says {'; nor '.join(lacks)}, which "
            f"{job.model} has"
        )
    found: Arguments = {
        "num-layers": spec.layers,
        "hidden-size": spec.hidden,
        "ffn-hidden-size": spec.ffn_hidden,
        "num-attention-heads": spec.heads,
        **_attention(spec, deepspeed),
        "seq-length": job.seq_len,
        "max-position-embeddings": max(job.seq_len, spec.max_positions),
        **_positions(spec, deepspeed),
        **_norms(spec, deepspeed),
    }
    if spec.gated_mlp:
        found["swiglu"] = True
    elif spec.activation == "relu2":
        found["squared-relu"] = True
    if _biases(spec) != "all":
        found["disable-bias-linear"] = True
    if _biases(spec) == "qkv":
        found["add-qkv-bias"] = True
    if not spec.tied_embeddings:
        found["untie-embeddings-and-output-weights"] = True
    if spec.multi_token_heads:
        found["mtp-num-layers"] = spec.multi_token_heads
    found["attention-dropout"] = spec.numerics.attention_dropout
    found["hidden-dropout"] = spec.dropout
    found["vocab-size"] = spec.vocab
    if spec.moe is not None:
        found |= _experts(spec, spec.moe, deepspeed)
    _require_said(job, found, target, deepspeed=deepspeed)
    return found


def _require_said(job: Job, found: Arguments, target: str, *, deepspeed: bool) -> None:
    """Raise Unsupported where *found* would be read as another shape: a field of the
    spec that no argument says."""
    words = arguments(words_of(found))[1]
    document, _ = read_shape(Fields(words, target), deepspeed=deepspeed)
    again, own = parse_model(dict(document), what=target).spec, job.spec
    assert isinstance(again, DecoderSpec), "the arguments are of a decoder"
    lost = [
        item.name.replace("_", " ")
        for item in fields_of(again)
        if item.name not in ("numerics", "moe", "max_positions")
        and getattr(again, item.name) != getattr(own, item.name)
    ]
    if _one_shared(again.moe) != _one_shared(getattr(own, "moe", None)):
        lost.append("experts")
    if lost:
        raise Unsupported(
            f"--export {target}: no argument says the {', '.join(lost)} of {job.model}"
        )


def _one_shared(moe: MoeSpec | None) -> MoeSpec | None:
    """Shared experts as one that is as wide as all: Megatron says the sum alone."""
    if moe is None or not moe.shared_experts:
        return moe
    width = moe.shared_experts * moe.shared_ffn_hidden
    return replace(moe, shared_experts=1, shared_ffn_hidden=width)


def _attention(spec: DecoderSpec, deepspeed: bool) -> Arguments:
    mla = spec.mla
    if mla is not None:
        return _latent(mla)
    found: Arguments = {}
    if spec.head_dim * spec.heads != spec.hidden:
        found["kv-channels"] = spec.head_dim
    if spec.kv_heads < spec.heads and deepspeed:
        found["num-key-value-heads"] = spec.kv_heads
    elif spec.kv_heads < spec.heads:
        found |= {"group-query-attention": True, "num-query-groups": spec.kv_heads}
    if spec.qk_norm:
        found["qk-layernorm"] = True
    return found


def _latent(mla: MlaSpec) -> Arguments:
    rank = {} if mla.query_rank is None else {"q-lora-rank": mla.query_rank}
    return {
        "multi-latent-attention": True,
        "kv-lora-rank": mla.kv_rank,
        **rank,
        "qk-head-dim": mla.nope_head_dim,
        "qk-pos-emb-head-dim": mla.rope_head_dim,
        "v-head-dim": mla.value_head_dim,
    }


def _positions(spec: DecoderSpec, deepspeed: bool) -> Arguments:
    theta, scaling = int(spec.numerics.rope_theta), spec.numerics.rope_scaling
    if deepspeed:
        if spec.position == "rotary":
            return {
                "use-rotary-position-embeddings": True,
                "rotary-position-embeddings-theta": theta,
            }
        return {"no-position-embedding": True} if spec.position == "none" else {}
    kinds = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}
    found: Arguments = {"position-embedding-type": kinds[spec.position]}
    if spec.position == "rotary":
        found["rotary-base"] = theta
    if scaling is not None:
        found |= {"use-rope-scaling": True, "rope-scaling-factor": scaling.factor}
    return found


def _norms(spec: DecoderSpec, deepspeed: bool) -> Arguments:
    if deepspeed:
        return {
            "normalization": spec.norm,
            "layernorm-epsilon": spec.numerics.norm_epsilon,
        }
    known = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
    return {
        "normalization": known[spec.norm],
        "norm-epsilon": spec.numerics.norm_epsilon,
    }


def _lacks_of_experts(spec: DecoderSpec, moe: MoeSpec, deepspeed: bool) -> list[str]:
    lacks = []
    if moe.router_bias or moe.latent or moe.shared_gate:
        lacks.append("routers with a bias, latent experts or gated shared ones")
    if deepspeed and (
        moe.shared_experts
        or moe.router_groups > 1
        or moe.experts_per_token > 2
        or moe.expert_ffn_hidden != spec.ffn_hidden
        or moe.first_layer != moe.every - 1
    ):
        lacks.append(
            "experts that are shared, grouped, more than two a token, of another width "
            "than the MLP or from another layer than --expert-interval's first"
        )
    return lacks


def _experts(spec: DecoderSpec, moe: MoeSpec, deepspeed: bool) -> Arguments:
    if deepspeed:
        dropless = moe.capacity_factor is None
        return {
            "num-experts": moe.experts,
            "topk": moe.experts_per_token,
            "expert-interval": moe.every,
            "create-moe-param-group": True,
            **(
                {"disable-moe-token-dropping": True}
                if dropless
                else {"moe-train-capacity-factor": moe.capacity_factor}
            ),
        }
    found: Arguments = {
        "num-experts": moe.experts,
        "moe-router-topk": moe.experts_per_token,
        "moe-ffn-hidden-size": moe.expert_ffn_hidden,
        "moe-layer-freq": _frequency(spec.layers, moe),
        "moe-token-dispatcher-type": "alltoall",
        "moe-grouped-gemm": True,
    }
    if moe.shared_experts:
        width = moe.shared_experts * moe.shared_ffn_hidden
        found["moe-shared-expert-intermediate-size"] = width
    if moe.router_groups > 1:
        found["moe-router-num-groups"] = moe.router_groups
        found["moe-router-group-topk"] = moe.groups_per_token or moe.router_groups
    if moe.capacity_factor is not None:
        found["moe-expert-capacity-factor"] = moe.capacity_factor
    if spec.numerics.routing != "softmax":
        found["moe-router-score-function"] = spec.numerics.routing
    return found


def _frequency(layers: int, moe: MoeSpec) -> str:
    """Each so manieth layer from the first, or a list of ones and zeros."""
    if moe.first_layer == 0:
        return str(moe.every)
    before = f"[0]*{moe.first_layer}"
    if moe.every == 1:
        return f"({before}+[1]*{layers - moe.first_layer})"
    rest = "+".join(
        "[1]" if moe.holds(layer) else "[0]" for layer in range(moe.first_layer, layers)
    )
    return f"({before}+{rest})"


def read_shape(fields: Fields, *, deepspeed: bool) -> tuple[Mapping[str, Any], Any]:
    """The members of a model file that the arguments are, and what was assumed.

    Raises InvalidFile for what is missing or no number.
    """
    assumed: dict[str, Any] = {}
    layers, hidden, heads = (
        _needed(fields, name)
        for name in ("num-layers", "hidden-size", "num-attention-heads")
    )
    gated = fields.switch("swiglu")
    squared = fields.switch("squared-relu")
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    no_bias = fields.switch("disable-bias-linear")
    found: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "ffn_hidden": fields.count("ffn-hidden-size", usual),
        "vocab": _vocabulary(fields, assumed),
        "gated_mlp": gated,
        "activation": "silu" if gated else "relu2" if squared else "gelu",
        **_read_attention(fields, hidden, heads, deepspeed),
        **_read_positions(fields, deepspeed),
        "attention_bias": not no_bias or fields.switch("add-qkv-bias"),
        "output_bias": not no_bias,
        "mlp_bias": not no_bias,
        "tied_embeddings": not fields.switch("untie-embeddings-and-output-weights"),
        "multi_token_heads": fields.integer("mtp-num-layers", 0, zero=True),
        "dropout": fields.number("hidden-dropout", DROPOUT),
        **_read_norm(fields, deepspeed),
    }
    assumed |= fields.defaults(
        hidden_dropout=DROPOUT,
        attention_dropout=DROPOUT,
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        optimizer="adam",
    )
    numerics = _read_numerics(fields, deepspeed)
    experts = _read_experts(fields, found, deepspeed)
    return {**found, **experts, "numerics": numerics}, assumed


def _needed(fields: Fields, name: str) -> int:
    found = fields.integer(name)
    if found is None:
        raise InvalidFile(
            f"{fields.what}: --{name} is missing; add it, as Megatron itself needs it"
        )
    return found


def _vocabulary(fields: Fields, assumed: dict[str, Any]) -> int:
    said = fields.integer("padded-vocab-size") or fields.integer("vocab-size")
    kind = fields.word("tokenizer-type")
    fields.skip("padded-vocab-size", "vocab-size")
    if said is not None:
        return said
    if "vocab-file" in fields and kind is None:
        kind = "GPT2BPETokenizer"
    if kind not in USUAL_VOCAB:
        raise InvalidFile(
            f"{fields.what}: --vocab-size is missing, and the tokenizer's file, which "
            "has it, is not read; add --vocab-size N"
        )
    assumed["vocab"] = USUAL_VOCAB[kind]
    return USUAL_VOCAB[kind]


def _read_attention(
    fields: Fields, hidden: int, heads: int, deepspeed: bool
) -> dict[str, Any]:
    if fields.switch("multi-latent-attention"):
        return {
            "kv_heads": heads,
            "head_dim": fields.count("qk-head-dim", 128),
            "mla": {
                "kv_rank": fields.count("kv-lora-rank", 32),
                "query_rank": fields.integer("q-lora-rank"),
                "rope_head_dim": fields.count("qk-pos-emb-head-dim", 64),
                "nope_head_dim": fields.count("qk-head-dim", 128),
                "value_head_dim": fields.count("v-head-dim", 128),
            },
        }
    grouped = fields.switch("group-query-attention")
    groups = fields.count("num-query-groups", 1 if grouped else heads)
    if deepspeed:
        groups, grouped = fields.count("num-key-value-heads", heads), True
    head = fields.integer("kv-channels")
    if head is None and hidden % heads:
        raise InvalidFile(
            f"{fields.what}: --num-attention-heads {heads} does not divide "
            f"--hidden-size {hidden}; give --kv-channels"
        )
    return {
        "kv_heads": groups if grouped else heads,
        "head_dim": head or hidden // heads,
        "qk_norm": fields.switch("qk-layernorm"),
    }


def _read_positions(fields: Fields, deepspeed: bool) -> dict[str, Any]:
    rotary = fields.switch("use-rotary-position-embeddings")
    none = fields.switch("no-position-embedding")
    kind = fields.word(
        "position-embedding-type",
        ("learned_absolute", "rope", "none"),
        "rope" if rotary else "none" if none and deepspeed else "learned_absolute",
    )
    positions = fields.integer("max-position-embeddings")
    if kind != "learned_absolute":
        return {"position": "rotary" if kind == "rope" else "none", "max_positions": 0}
    length = fields.integer("seq-length")
    return {"position": "learned", "max_positions": positions or length or 2048}


def _read_norm(fields: Fields, deepspeed: bool) -> dict[str, Any]:
    known = ("layernorm", "rmsnorm") if deepspeed else ("LayerNorm", "RMSNorm")
    found = fields.word("normalization", known, known[0])
    return {"norm": (found or known[0]).lower()}


def _read_numerics(fields: Fields, deepspeed: bool) -> dict[str, Any]:
    theta = "rotary-position-embeddings-theta" if deepspeed else "rotary-base"
    epsilon = fields.number("layernorm-epsilon") or fields.number("norm-epsilon", 1e-5)
    found: dict[str, Any] = {
        "norm_epsilon": epsilon,
        "rope_theta": fields.number(theta, 10000.0),
        "attention_dropout": fields.number("attention-dropout", DROPOUT),
    }
    fields.skip("layernorm-epsilon", "norm-epsilon")
    if fields.switch("use-rope-scaling"):
        factor = fields.number("rope-scaling-factor", 8.0)
        found["rope_scaling"] = {"kind": "llama3", "factor": factor}
    routing = fields.word("moe-router-score-function", ("softmax", "sigmoid"))
    if routing == "sigmoid":
        found["routing"] = routing
    return found


def _read_experts(
    fields: Fields, shape: Mapping[str, Any], deepspeed: bool
) -> dict[str, Any]:
    experts = fields.integer("num-experts", 1)
    if experts in (None, 1):
        return {}
    width = shape["ffn_hidden"]
    if deepspeed:
        every = fields.count("expert-interval", 2)
        dropless = fields.switch("disable-moe-token-dropping")
        factor = fields.number("moe-train-capacity-factor", 1.0)
        placed = {"first_layer": every - 1, "every": every}
        capacity = None if dropless else factor
        chosen = fields.count("topk", 1)
    else:
        width = fields.count("moe-ffn-hidden-size", width)
        placed = _placed(fields, shape["layers"])
        capacity = fields.number("moe-expert-capacity-factor")
        chosen = fields.count("moe-router-topk", 2)
    shared = fields.integer("moe-shared-expert-intermediate-size")
    groups = fields.count("moe-router-num-groups", 1)
    fields.skip("moe-router-group-topk")
    return {
        "moe": {
            "experts": experts,
            "experts_per_token": chosen,
            "expert_ffn_hidden": width,
            "shared_experts": 1 if shared else 0,
            "shared_ffn_hidden": shared or 0,
            **placed,
            "capacity_factor": capacity,
            "router_groups": groups,
            "groups_per_token": fields.integer("moe-router-group-topk")
            if groups > 1
            else None,
        }
    }


def _placed(fields: Fields, layers: int) -> dict[str, int]:
    """From which layer on experts are, and in each so manieth."""
    text = str(fields.raw("moe-layer-freq") or "1").replace(" ", "")
    if text.isdigit() and len(text) < 7 and int(text) > 0:
        return {"first_layer": 0, "every": int(text)}
    found = marks(text)
    if found is None or len(found) != layers or 1 not in found:
        raise fields.wrong(
            "moe-layer-freq", "a number, or a list such as ([0]*3+[1]*58) of all layers"
        )
    first = found.index(1)
    every = found.index(1, first + 1) - first if found.count(1) > 1 else layers
    if found != [
        int(layer >= first and (layer - first) % every == 0) for layer in range(layers)
    ]:
        raise fields.wrong(
            "moe-layer-freq", "experts in each so manieth layer from one on"
        )
    return {"first_layer": first, "every": every}


def marks(text: str) -> list[int] | None:
    """`([0]*3+[1]*58)*1` as zeros and ones; None for anything else."""
    inner, times = text, 1
    whole = re.fullmatch(r"\((.*)\)(?:\*(\d{1,6}))?", text)
    if whole:
        inner, times = whole[1], int(whole[2] or 1)
    found: list[int] = []
    for part in inner.split("+"):
        match = _PATTERN.fullmatch(part)
        if match is None:
            return None
        found += [int(match[1])] * min(int(match[2] or 1), 100_001)
        if len(found) > 100_000:
            return None
    return found * times if len(found) * times <= 100_000 else None
