"""How each fact of the support table is brought about: from its value to settings.

Settings are fields of the spec, of the dozen numbers or of the job; `edit` changes the
finished layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from costmodel.layout.offload import Offload, ZeroPlus
from costmodel.layout.retention import (
    EVERYTHING,
    Action,
    Retention,
    Treatment,
    recompute,
)
from costmodel.schedule.schedules import SCHEDULES, least_chunks
from profiles.models.decoder import decoder_graph
from profiles.models.spec import DecoderSpec, MlaSpec, MoeSpec, Numerics, RecurrenceSpec
from tests.support.blocks import along_sequences
from tests.support.edits import (
    elsewhere,
    experts,
    gaps,
    mixed_sharding,
    mixed_zero,
    replanned,
    unchanged,
    unlike,
    wide_experts,
)

SEQ_LEN, GLOBAL_BATCH = 16, 8
SPEC = DecoderSpec(
    layers=4,
    hidden=32,
    heads=4,
    kv_heads=4,
    head_dim=8,
    ffn_hidden=64,
    vocab=64,
    max_positions=SEQ_LEN,
    tied_embeddings=False,
)
MLA = MlaSpec(
    kv_rank=8, query_rank=None, rope_head_dim=4, nope_head_dim=4, value_head_dim=8
)
MOE = MoeSpec(experts=2, experts_per_token=1, expert_ffn_hidden=64)
MAMBA = RecurrenceSpec(
    kind="mamba-2", heads=4, head_dim=8, state=4, groups=2, conv_width=4, chunk=8
)
UNTRAINED = {
    "encoder-decoder": "t5-11b",
    "bert": "bert-large",
    "vit": "vit-large",
    "unet": "unet-3d",
    "resnet": "resnet-50",
    "clip": "clip-vit-large",
    "vision-language": "llava-1.5-7b",
}


def _flag(name: str, on: Any, off: Any) -> Callable[[str], dict[str, Any]]:
    return lambda value: {name: on if value == "yes" else off}


def _degree(name: str) -> Callable[[str], dict[str, Any]]:
    return lambda value: {name: 2} if value == ">1" else {}


def _size(name: str, odd: int, **more: Any) -> Callable[[str], dict[str, Any]]:
    return lambda value: {name: odd, "tp": 2, **more} if value == "uneven" else {}


def _together(value: str) -> dict[str, Any]:
    return dict.fromkeys(value.split("×"), 2)


def _zero(value: str) -> dict[str, Any]:
    if value != "mixed":
        return {"zero": int(value)}
    return {"zero": 1, "edit": mixed_zero}


def _schedule(value: str) -> dict[str, Any]:
    if value in SCHEDULES:
        return {"pp": 2, "schedule": value, "virtual_stages": least_chunks(value)}
    return {"pp": 2, "edit": lambda layout: replace(layout, schedule=value)}


def _split(value: str) -> dict[str, Any]:
    if value == "no":
        return {"sequence_parallel": False}
    found: dict[str, Any] = {"tp": 2, "sequence_parallel": True}
    return {**found, "edit": mixed_sharding} if value == "mixed" else found


def _stages(value: str) -> dict[str, Any]:
    edits = {"unlike": unlike, "held elsewhere": elsewhere, "gaps": gaps}
    return {"pp": 2, "dp": 2, "edit": edits.get(value, unchanged)}


def _recompute(value: str) -> dict[str, Any]:
    if value == "segments":
        return {"recompute": "sqrt"}
    if value == "by name":
        return {"recompute": "cheap-ops"}
    if value == "of routing":
        rows = recompute("dispatch_out")
        return {"moe": MOE, "edit": lambda layout: replanned(layout, "1", rows)}
    if value == "in part":
        return {"recompute": "mlp_up=0.5"}
    if value == "of ends":
        return {"edit": lambda layout: replanned(layout, "head", recompute("*"))}
    if value == "selective and full":
        again = recompute("*")
        return {
            "recompute": "selective",
            "edit": lambda layout: replanned(layout, "0", again),
        }
    return {"recompute": value}


def _saved(value: str) -> dict[str, Any]:
    tier = "nvme" if value == "on disk" else "cpu"
    away = (
        Treatment(action=Action.COMPRESS, bits=8)
        if value.startswith("compressed")
        else Treatment(action=Action.OFFLOAD, tier=tier)
    )
    layer = "head" if value == "of ends" else "1"
    there = Retention(tensors={EVERYTHING: away})
    if value == "compressed input":
        there = Retention(tensors={**recompute("*").tensors, "layer_in": away})
    return {"edit": lambda layout: replanned(layout, layer, there)}


def _away(value: str) -> Offload:
    return Offload(optimizer="optimizer" in value, parameters="parameters" in value)


def _kept_on(value: str) -> dict[str, Any]:
    tier = "nvme" if value == "drive" else "cpu"
    edit = lambda layout: replace(  # noqa: E731
        layout, offload=replace(layout.offload, tier=tier)
    )
    return {"edit": edit}


def _gradients(value: str) -> dict[str, Any]:
    if value == "fp32":
        return {"gradient_format": "fp32"}
    sixteen = "fp16" if "fp16" in value else "bf16"
    return {
        "precision": sixteen,
        "gradient_format": "bf16+fp32" if "+" in value else sixteen,
    }


def _by_modules(value: str) -> dict[str, Any]:
    """The layers' products along rows of sequences, the rest as it comes."""
    if value == "by a preset":
        return {}
    block = decoder_graph(SPEC).block("layer")
    modules = along_sequences(block)
    edit = lambda layout: layout.sharded(dict.fromkeys("0123", modules))  # noqa: E731
    return {"tp": 2, "micro_batch": 2, "edit": edit}


SETTINGS: dict[str, Callable[[str], dict[str, Any]]] = {
    "family": lambda _: {},
    "own code": lambda _: {},
    "splits": lambda value: {"tp": 2 if value == "uneven" else 1},
    "experts": _flag("moe", MOE, None),
    "router groups": lambda _: {
        "moe": replace(MOE, experts=4, router_groups=2, groups_per_token=1)
    },
    "capacity": lambda _: {"moe": replace(MOE, capacity_factor=1.0)},
    "experts of a rank": lambda _: {
        "moe": replace(MOE, experts=3),
        "dp": 2,
        "edit": experts,
    },
    "width of an expert": lambda _: {
        "moe": replace(MOE, expert_ffn_hidden=63),
        "dp": 2,
        "edit": wide_experts,
    },
    "latent experts": _flag("moe", replace(MOE, latent=16), MOE),
    "recurrence": lambda _: {"pattern": "M*", "recurrence": MAMBA},
    "split layers": lambda _: {"pattern": "*-"},
    "attention gate": _flag("attention_gate", on=True, off=False),
    "attention sinks": _flag("attention_sinks", on=True, off=False),
    "latent attention": _flag("mla", MLA, None),
    "multi-token heads": _flag("multi_token_heads", 1, 0),
    "parallel block": _flag("parallel_block", on=True, off=False),
    "query-key norm": _flag("qk_norm", on=True, off=False),
    "grouped queries": _flag("kv_heads", 2, 4),
    "gated": _flag("gated_mlp", on=True, off=False),
    "tied embeddings": _flag("tied_embeddings", on=True, off=False),
    "positions": lambda value: {"position": value},
    "window": lambda _: {"window": SEQ_LEN // 2},
    "norm": lambda value: {"norm": value},
    "activation": lambda value: {"activation": "tanh" if value == "other" else value},
    "dropout": lambda _: {"dropout": 0.1},
    "attention dropout": lambda _: {"numerics": Numerics(attention_dropout=0.1)},
    "not computed": lambda _: {"numerics": Numerics(not_computed=("alibi slopes",))},
    "attention kernel": lambda value: {"flash_attention": value == "fused"},
    **{name: _degree(name) for name in ("tp", "pp", "cp")},
    "cp kind": lambda value: {"cp": 2, "cp_kind": value},
    "chunks": lambda _: {"seq_len": SEQ_LEN - 1},
    "heads of a rank": lambda _: {"heads": 3, "kv_heads": 3},
    "ep": lambda _: {"dp": 2, "edit": experts},
    "etp": lambda _: {"moe": MOE, "dp": 2, "edit": wide_experts},
    "heads": _size("heads", 3, kv_heads=3),
    "kv_heads": _size("kv_heads", 1),
    "ffn_hidden": _size("ffn_hidden", 65),
    "vocab": _size("vocab", 65),
    "seq_len": _size("seq_len", SEQ_LEN - 1, sequence_parallel=True),
    "together": _together,
    "zero": _zero,
    "zero group": lambda _: {"dp": 4, "zero_group": 2},
    "schedule": _schedule,
    "flush": lambda value: _schedule("2bw") if value == "no" else {},
    "sequence parallel": _split,
    "operators": _by_modules,
    "stages": _stages,
    "recompute": _recompute,
    "saved tensors": _saved,
    "states": lambda value: {"offload": _away(value)},
    "states on": _kept_on,
    "ZeRO++": lambda _: {"zero": 3, "zero_plus": ZeroPlus(quantized_weights=True)},
    "replicas": lambda _: {"dp": 2},
    "precision": lambda value: {"precision": value},
    "gradients": _gradients,
    "optimizer": lambda value: {"optimizer": value},
}
