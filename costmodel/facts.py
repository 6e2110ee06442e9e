"""Facts of a combination and a job: what the rows of the support table ask about.

Each has a value that rows name (`>1`, `uneven`) and one that messages show (`4`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from costmodel.combination import (
    AWAY,
    BY_NAME,
    IN_PART,
    OF_ROUTING,
    SEGMENTS,
    Combination,
)
from profiles.job import Job
from profiles.models.spec import DecoderSpec
from profiles.precision import precision

ACTIVATIONS = ("gelu", "relu", "silu")  # that the runtime's MLP has
DEGREES = ("tp", "pp", "dp", "cp")
AGAIN = frozenset(("selective", "full", SEGMENTS, BY_NAME, OF_ROUTING, IN_PART))
MOVED = frozenset((*AWAY.values(), "compressed"))


@dataclass(frozen=True, slots=True)
class Fact:
    """*value* as rows name it, *shown* as messages do."""

    value: str
    shown: str


Facts = Mapping[str, Fact]


def facts(used: Combination, job: Job) -> Facts:
    """Every fact of the plan and of *job*, by name."""
    return {**_layout(used, job), **_model(job, used)}


def _layout(used: Combination, job: Job) -> dict[str, Fact]:
    zero = _common(used.zero) if used.dp * used.cp > 1 else "0"
    whole = zero == "0" or used.zero_group == used.dp
    split = _common(_yes(one) for one in used.sequence_parallel)
    several = [name for name in DEGREES if getattr(used, name) > 1]
    return {
        **{name: _degree(getattr(used, name)) for name in (*DEGREES, "ep", "etp")},
        "together": _plain("×".join(several) or "nothing"),
        "replicas": _degree(used.dp * used.cp),
        "zero": _plain(zero),
        "zero group": Fact("all" if whole else "part", str(used.zero_group)),
        "sequence parallel": _plain(split if used.tp > 1 else "no"),
        "operators": _plain("by modules" if used.by_modules else "by a preset"),
        "seq_len": _divided(job.seq_len, used.tp * used.cp),
        "cp kind": _plain(used.cp_kind if used.cp > 1 else "none"),
        "chunks": _divided(job.seq_len, _chunks(used)),
        "schedule": _plain(used.schedule if used.pp > 1 else "none"),
        "stages": _plain(used.stages),
        "recompute": _plain(_recompute(used)),
        "saved tensors": _plain(_elsewhere(used)),
        "states": _plain(used.states),
        "states on": _plain(used.states_on),
        "ZeRO++": Fact("none" if used.zero_plus == "none" else "some", used.zero_plus),
        "attention kernel": _plain("fused" if used.flash_attention else "unfused"),
        "precision": _plain(used.precision),
        "gradients": _plain(_gradients(used)),
        "optimizer": _plain(job.optimizer),
    }


def _model(job: Job, used: Combination) -> dict[str, Fact]:
    spec, tp = job.spec, used.tp
    found = {"family": _plain(spec.family)}
    if not isinstance(spec, DecoderSpec):
        return found
    flags = {
        "experts": spec.moe is not None,
        "attention sinks": spec.attention_sinks,
        "latent attention": spec.mla is not None,
        "multi-token heads": spec.multi_token_heads > 0,
        "parallel block": spec.parallel_block,
        "query-key norm": spec.qk_norm,
        "grouped queries": spec.kv_heads < spec.heads,
        "gated": spec.gated_mlp,
        "tied embeddings": spec.tied_embeddings,
    }
    sizes = ("heads", "kv_heads", "ffn_hidden", "vocab")
    short = spec.reach is not None and spec.reach < job.seq_len
    dropout, beyond = max(spec.dropout, spec.embedding_dropout), spec.numerics
    known = spec.activation in ACTIVATIONS
    return {
        **found,
        **{name: _plain(_yes(flag)) for name, flag in flags.items()},
        **{name: _divided(getattr(spec, name), tp) for name in sizes},
        **_experts(spec, used),
        "heads of a rank": _plain(_spread(spec, used)),
        "positions": _plain(spec.position),
        "window": Fact("short" if short else "none", str(spec.reach)),
        "norm": _plain(spec.norm),
        "activation": Fact(spec.activation if known else "other", spec.activation),
        "dropout": Fact(">0" if dropout else "0", f"{dropout:g}"),
        "attention dropout": Fact(
            ">0" if beyond.attention_dropout else "0", f"{beyond.attention_dropout:g}"
        ),
        "not computed": Fact(
            "some" if beyond.not_computed else "none", ", ".join(beyond.not_computed)
        ),
    }


def _experts(spec: DecoderSpec, used: Combination) -> dict[str, Fact]:
    moe = spec.moe
    if moe is None:
        return {
            "router groups": Fact("1", "1"),
            "capacity": _plain("any"),
            "experts of a rank": _plain("even"),
            "width of an expert": _plain("even"),
        }
    capacity = moe.capacity_factor
    return {
        "router groups": _degree(moe.router_groups),
        "capacity": _plain("any") if capacity is None else Fact("fixed", str(capacity)),
        "experts of a rank": _divided(moe.experts, used.ep),
        "width of an expert": _divided(moe.expert_ffn_hidden, used.etp),
    }


def _chunks(used: Combination) -> int:
    """Into how many chunks context parallelism cuts the sequence: a causal mask is
    shared out by two a rank, or by heads, or not at all."""
    return used.cp if used.cp_kind in ("ulysses", "rsa") else 2 * used.cp


def _spread(spec: DecoderSpec, used: Combination) -> str:
    """Whether context parallelism by heads gives each rank as many: of queries, and of
    keys as many or a copy of one."""
    heads, kv_heads = (-(-one // used.tp) for one in (spec.heads, spec.kv_heads))
    fair = kv_heads % used.cp == 0 or used.cp % kv_heads == 0
    return "even" if heads % used.cp == 0 and fair else "uneven"


def _recompute(used: Combination) -> str:
    again = used.retentions & AGAIN
    if used.of_ends & AGAIN:
        return "of ends"
    for word in (IN_PART, SEGMENTS, OF_ROUTING, BY_NAME):
        if word in again:
            return word
    return "selective and full" if len(again) > 1 else min(again, default="none")


def _elsewhere(used: Combination) -> str:
    if used.of_ends & MOVED:
        return "of ends"
    return max(used.retentions & MOVED, default="on the device")


def _gradients(used: Combination) -> str:
    """The formats that are really kept: some precisions have but one."""
    found = precision(used.precision, gradient=used.gradient_format)
    return f"{found.reduced_copy or ''}+{found.gradient}".lstrip("+")


def _common(values: Iterable[object]) -> str:
    distinct = {str(value) for value in values}
    return distinct.pop() if len(distinct) == 1 else "mixed"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _plain(value: str) -> Fact:
    return Fact(value, value)


def _degree(size: int) -> Fact:
    return Fact("1" if size == 1 else ">1", str(size))


def _divided(size: int, parts: int) -> Fact:
    return Fact("uneven" if size % parts else "even", str(size))
