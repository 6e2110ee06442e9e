"""Which layouts tests train: each case is one, with the small models they are of.

What every run trains is each mechanism once (`usual`); the rest is marked `matrix`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform
from profiles.models.catalog import model
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec, MoeSpec
from tests.support import sharded_cases
from tests.support.composed_cases import COMPOSED, composed
from tests.support.small_layouts import (
    CHIMERA,
    CP2,
    DP2,
    DUALPIPE_V,
    FP32,
    FSDP,
    FSDP_SP,
    INTERLEAVED,
    ON_DRIVE,
    OPTIMIZER,
    PP2,
    SAVED_ON_DRIVE,
    SP,
    STATES,
    STATES_ON_DRIVE,
    ZB_H1,
    ZB_V,
    ZERO1,
    ZERO2,
)

BATCH = 8
Parts = tuple[tuple[int, ...], ...]
WHOLE: Parts = ((0,),)  # one chunk, on one rank

CASES: dict[str, Uniform] = {
    "single": replace(FP32, micro_batch=8),
    "accumulation": FP32,
    "full-recompute": replace(FP32, recompute="full"),
    "selective-recompute": replace(FP32, recompute="selective"),
    "dp2": DP2,
    "zero1": ZERO1,
    "zero2": ZERO2,
    "fsdp2": FSDP,
    "tp2": replace(FP32, tp=2),
    "tp2-sp": SP,
    "pp2-gpipe": replace(PP2, schedule="gpipe"),
    "pp2-1f1b": PP2,
    "pp2-interleaved": INTERLEAVED,
    "tp2-pp2": replace(SP, pp=2),
    "dp2-tp2": replace(DP2, tp=2),
    "dp2-pp2": replace(DP2, pp=2),
    "dp2-pp2-interleaved-zero1": replace(INTERLEAVED, dp=2, zero=1, zero_group=2),
    "fsdp2-tp2": FSDP_SP,
    "fsdp2-pp2": replace(FSDP, pp=2, recompute="full"),
    "zero2-pp2": replace(ZERO2, pp=2, schedule="gpipe"),
    "cp2-ring": CP2,
    "cp2-all-gather": replace(CP2, cp_kind="all-gather"),
    "cp2-ulysses": replace(CP2, cp_kind="ulysses"),
    "cp2-zero1-selective": replace(
        CP2, zero=1, cp_kind="ulysses", recompute="selective"
    ),
    "cp2-zero3-full": replace(CP2, zero=3, recompute="full"),
    "cp4-ring": replace(CP2, cp=4, recompute="selective"),
    "cp4-all-gather": replace(CP2, cp=4, zero=2, cp_kind="all-gather"),
    "cp4-ulysses": replace(CP2, cp=4, cp_kind="ulysses"),
    "cp2-tp2": replace(CP2, tp=2),
    "cp2-tp2-sp-zero1": replace(SP, cp=2, cp_kind="all-gather"),
    "cp2-pp2": replace(CP2, pp=2),
    "dp2-cp2-zero2": replace(ZERO2, cp=2),
    "cheap-ops": replace(FP32, recompute="cheap-ops"),
    "sqrt": replace(FP32, recompute="sqrt"),
    "tp2-sp-by-name": replace(SP, recompute="qkv,projection,mlp_up,mlp_down"),
    "zero1-sqrt-offloaded": replace(
        ZERO1, recompute="sqrt", offload=Offload(activations=1.0)
    ),
    "fsdp2-cheap-ops": replace(FSDP, recompute="cheap-ops"),
    "fsdp2-sqrt": replace(FSDP, recompute="sqrt"),
    "fsdp2-tp2-sqrt": replace(FSDP_SP, recompute="sqrt"),
    "fsdp2-pp2-sqrt": replace(FSDP, pp=2, recompute="sqrt"),
    "fsdp2-sqrt-states-away": replace(FSDP, recompute="sqrt", offload=STATES),
    "fsdp2-sqrt-states-drive": replace(FSDP, recompute="sqrt", offload=STATES_ON_DRIVE),
    "pp2-zb-v-offloaded": replace(
        ZB_V, recompute="selective", offload=Offload(activations=0.5)
    ),
    "cp2-zb-h1-zero1": replace(ZB_H1, cp=2),
    "cp2-chimera": replace(CHIMERA, cp=2, zero=0, cp_kind="ulysses"),
    "pp2-zb-h1": ZB_H1,
    "pp2-zb-interleaved": replace(PP2, virtual_stages=3, schedule="zb-interleaved"),
    "pp2-zb-v": ZB_V,
    "pp2-dualpipe-v": DUALPIPE_V,
    "pp2-chimera": CHIMERA,
    "zero1-zb-v": replace(ZB_V, dp=2, zero=1, zero_group=2),
    "tp2-zb-v": replace(ZB_V, tp=2, sequence_parallel=True),
    "dp2-dualpipe-v": replace(DUALPIPE_V, dp=2, zero=0, micro_batch=1),
    "dp2-zb-h1-full": replace(ZB_H1, dp=2, zero=0, recompute="full"),
    "pp4-zb-h1": replace(ZB_H1, pp=4),
    "pp4-chimera": replace(CHIMERA, pp=4),
    "dp2-chimera": replace(CHIMERA, dp=2, zero=0),
    "tp2-chimera": replace(CHIMERA, tp=2, sequence_parallel=True),
    "states-away": replace(FP32, zero=3, offload=STATES),
    "dp2-optimizer-away": replace(DP2, offload=OPTIMIZER),
    "zero1-optimizer-away": replace(ZERO1, offload=OPTIMIZER),
    "zero2-optimizer-away": replace(ZERO2, offload=OPTIMIZER),
    "fsdp2-optimizer-away": replace(FSDP, offload=OPTIMIZER),
    "fsdp2-states-away": replace(FSDP, recompute="full", offload=STATES),
    "tp2-sp-optimizer-away": replace(SP, offload=OPTIMIZER),
    "tp2-sp-states-away": replace(SP, zero=3, offload=STATES),
    "pp2-optimizer-away": replace(PP2, offload=OPTIMIZER),
    "pp2-states-away": replace(PP2, zero=3, offload=STATES),
    "cp2-zero2-optimizer-away": replace(CP2, zero=2, offload=OPTIMIZER),
    "zero1-zb-v-optimizer-away": replace(
        ZB_V, dp=2, zero=1, zero_group=2, offload=OPTIMIZER
    ),
    "dp2-chimera-optimizer-away": replace(CHIMERA, dp=2, zero=0, offload=OPTIMIZER),
    "fsdp2-tp2-optimizer-away": replace(FSDP_SP, offload=OPTIMIZER),
    "fsdp2-pp2-states-away": replace(FSDP, pp=2, offload=STATES),
    "drive": replace(FP32, offload=ON_DRIVE),
    "states-drive": replace(FP32, zero=3, offload=STATES_ON_DRIVE),
    "dp2-drive": replace(DP2, offload=ON_DRIVE),
    "zero1-drive": replace(ZERO1, offload=ON_DRIVE),
    "zero2-drive": replace(ZERO2, offload=ON_DRIVE),
    "fsdp2-drive": replace(FSDP, offload=ON_DRIVE),
    "fsdp2-states-drive": replace(FSDP, recompute="full", offload=STATES_ON_DRIVE),
    "tp2-sp-drive": replace(SP, offload=ON_DRIVE),
    "pp2-interleaved-drive": replace(INTERLEAVED, offload=ON_DRIVE),
    "fsdp2-pp2-states-drive": replace(FSDP, pp=2, offload=STATES_ON_DRIVE),
    "zero1-zb-v-drive": replace(ZB_V, dp=2, zero=1, zero_group=2, offload=ON_DRIVE),
    "dp2-chimera-drive": replace(CHIMERA, dp=2, zero=0, offload=ON_DRIVE),
    "fsdp2-tp2-states-drive": replace(FSDP_SP, offload=STATES_ON_DRIVE),
    "saved-drive": replace(FP32, offload=SAVED_ON_DRIVE),
    "pp2-zb-h1-saved-drive": replace(ZB_H1, offload=SAVED_ON_DRIVE),
    "zero1-full-saved-drive": replace(ZERO1, recompute="full", offload=SAVED_ON_DRIVE),
    "fsdp2-tp2-all-drive": replace(
        FSDP_SP, offload=replace(STATES_ON_DRIVE, activations=0.5)
    ),
    **sharded_cases.CASES,
}
FAMILIES = ("gpt", "llama", "mixtral", "switch")
EXPERTS = ("mixtral", "switch")  # which has experts that drop tokens
# Where Llama differs: gated MLP, grouped heads, their norms, an untied head.
OF_LLAMA = (
    *("accumulation", "full-recompute", "zero1", "tp2", "tp2-sp"),
    *("pp2-interleaved", "fsdp2-tp2", "tp2-zb-v", "zero1-zb-v"),
    *("cheap-ops", "tp2-sp-by-name"),
    *("cp2-ring", "cp2-ulysses", "cp4-ulysses", "cp2-tp2-sp-zero1"),
)
# Experts in every layer but the first, shared ones beside them.
MOE = MoeSpec(
    experts=4,
    experts_per_token=2,
    expert_ffn_hidden=64,
    shared_experts=1,
    shared_ffn_hidden=64,
    first_layer=1,
)
OF_EXPERTS: dict[str, Uniform] = {
    "accumulation": FP32,
    "dp2": DP2,
    "dp2-ep2": replace(DP2, ep=2),
    "dp2-ep2-zero1-full": replace(ZERO1, ep=2, recompute="full"),
    "dp2-ep2-cheap-ops": replace(DP2, ep=2, recompute="cheap-ops"),
    "tp2-etp2-by-name": replace(
        SP, etp=2, zero=0, recompute="qkv,mlp_up,shared_up,router,activation"
    ),
    "fsdp2-offloaded": replace(FSDP, offload=Offload(activations=0.5)),
    "pp2-zb-h1-offloaded": replace(ZB_H1, offload=Offload(activations=1.0)),
    "dp2-ep2-saved-drive": replace(DP2, ep=2, offload=SAVED_ON_DRIVE),
    "dp2-ep2-sqrt": replace(DP2, ep=2, recompute="sqrt"),
    "fsdp2-sqrt": replace(FSDP, recompute="sqrt"),
    "dp4-ep2-zero3-sqrt": replace(
        FP32, dp=4, ep=2, zero=3, zero_group=4, recompute="sqrt"
    ),
    "tp2-etp2-sqrt": replace(SP, etp=2, zero=0, recompute="sqrt"),
    "fsdp2": FSDP,
    "cp2-ep2": replace(CP2, ep=2),
    "tp2-ep2": replace(SP, ep=2, zero=0),
    "dp4-ep2-zero2": replace(FP32, dp=4, ep=2, zero=2, zero_group=4),
    "dp4-ep4-zero3": replace(FP32, dp=4, ep=4, zero=3, zero_group=4),
    "tp2-etp2": replace(SP, etp=2, zero=0),
    "dp2-etp2-full": replace(DP2, etp=2, recompute="full"),
    "dp4-etp2-zero3": replace(FP32, dp=4, etp=2, zero=3, zero_group=4),
    "dp4-ep2-etp2-zero1": replace(FP32, dp=4, ep=2, etp=2, zero=1, zero_group=4),
    "dp2-pp2-etp2-zb-h1": replace(ZB_H1, dp=2, etp=2, zero=0),
    "dp2-pp2-etp2-chimera": replace(CHIMERA, dp=2, etp=2, zero=0),
    "dp2-tp2-ep2": replace(SP, dp=2, ep=2, zero=0),
    "cp2-tp2-ep4-zero1": replace(SP, cp=2, ep=4),
    "dp2-pp2-ep2-interleaved": replace(INTERLEAVED, dp=2, ep=2, zero=0),
    "dp2-ep2-zero2-optimizer-away": replace(ZERO2, ep=2, offload=OPTIMIZER),
    "dp4-ep2-zero3-states-away": replace(
        FP32, dp=4, ep=2, zero=3, zero_group=4, offload=STATES
    ),
    "dp4-ep2-zero2-drive": replace(
        FP32, dp=4, ep=2, zero=2, zero_group=4, offload=ON_DRIVE
    ),
    "dp2-ep2-zero2-drive": replace(ZERO2, ep=2, offload=ON_DRIVE),
    "dp4-ep2-zero3-optimizer-away": replace(
        FP32, dp=4, ep=2, zero=3, zero_group=4, offload=OPTIMIZER
    ),
    **sharded_cases.OF_EXPERTS,
}
# Where experts of a fixed capacity differ: what is sent, dropped and made again.
OF_SWITCH = (
    *("dp2-ep2", "dp2-ep2-zero1-full", "fsdp2", "cp2-ep2", "tp2-ep2"),
    *("dp4-ep4-zero3", "dp2-pp2-ep2-interleaved"),
    *("tp2-etp2", "dp4-ep2-etp2-zero1", "dp2-ep2-cheap-ops", "fsdp2-offloaded"),
)
SOME = {"llama": OF_LLAMA, "switch": OF_SWITCH}


def job(family: str) -> Job:
    """A small model: GPT (tied, learned positions) or Llama (grouped, gated)."""
    if family == "gpt":
        spec = model("gpt-tiny").spec
        assert isinstance(spec, DecoderSpec)
        spec = replace(
            spec, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn_hidden=256
        )
    else:
        spec = model("llama3.2-1b").spec
        assert isinstance(spec, DecoderSpec)
        spec = replace(
            spec,
            layers=4,
            hidden=64,
            heads=4,
            kv_heads=2,
            head_dim=16,
            ffn_hidden=128,
            vocab=512,
            qk_norm=True,
            tied_embeddings=False,
        )
    if family in EXPERTS:
        fixed = 0.75 if family == "switch" else None
        spec = replace(spec, moe=replace(MOE, capacity_factor=fixed), qk_norm=False)
    return Job(model=family, spec=spec, seq_len=64, global_batch=BATCH)


def choice_of(family: str, name: str) -> Uniform:
    known = OF_EXPERTS if family in EXPERTS else CASES
    return known[name] if name in known else composed(name)


def parts_known(family: str, name: str) -> Parts:
    """Of what parts of a sequence the experts of a case drop tokens by themselves."""
    return parts_of(choice_of(family, name)) if family == "switch" else WHOLE


def parts_of(choice: Uniform) -> Parts:
    """The chunks of a sequence that each of the ranks that share it has, of as many
    chunks as there are altogether: zig-zag over cp, one after another over tp."""
    if choice.cp == 2 and choice.cp_kind == "ring" and choice.tp == 1:
        return (0, 3), (1, 2)
    assert choice.cp == 1, "only rings of two are spelled out here"
    width = choice.tp if choice.sequence_parallel else 1
    return tuple((part,) for part in range(width))


# Of 2 and 4 ranks, what every run of the tests trains: each mechanism once. The rest
# are pairs of mechanisms and further models, marked `matrix`.
USUAL = {
    "gpt": """
        dp2 zero1 fsdp2 tp2-sp pp2-1f1b pp2-interleaved cp2-ring cp2-all-gather
        cp2-ulysses tp2-sp-by-name zero1-sqrt-offloaded pp2-zb-h1 pp2-zb-v
        pp2-dualpipe-v pp2-chimera tp2-pp2 fsdp2-tp2 fsdp2-pp2 cp2-tp2-sp-zero1
        dp2-chimera fsdp2-optimizer-away hybrid-fsdp fsdp-zb-h1 zero2-drive
    """,
    "llama": "tp2-sp tp2-zb-v",
    "switch": "dp2-ep2 fsdp2",
    "mixtral": "dp2-ep2 tp2-ep2 tp2-etp2 cp2-tp2-ep4-zero1 dp2-pp2-ep2-interleaved",
}


WORLDS = (1, 2, 4, 8, 16)


def cases_of(world: int) -> list[tuple[str, str]]:
    """(family, case) of so many ranks."""
    return [
        (family, name)
        for family in FAMILIES
        for name in (*_named(family), *COMPOSED.get(family, ()))
        if choice_of(family, name).gpus == world
    ]


def _named(family: str) -> Collection[str]:
    return SOME.get(family, OF_EXPERTS if family in EXPERTS else CASES)


def usual(family: str, name: str) -> bool:
    """Whether every run of the tests trains a case."""
    alone = choice_of(family, name).gpus == 1
    return alone or name in USUAL[family].split()
