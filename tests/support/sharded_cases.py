"""Layouts whose shards are not those of one dp axis and a whole backward, for tests.

Shards over a part of dp (HSDP), of one holder of a stage that has two (Chimera), and
scattered as W completes what I leaves; experts under those schedules. They join the
cases of `training_cases`.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.layout.strategy import Uniform
from tests.support.small_layouts import (
    CHIMERA,
    DUALPIPE_V,
    FP32,
    HYBRID,
    ON_DRIVE,
    OPTIMIZER,
    PP2,
    STATES,
    STATES_ON_DRIVE,
    ZB_H1,
    ZB_V,
)

CHIMERA2 = replace(CHIMERA, dp=2, zero_group=2)
CHIMERA4 = replace(CHIMERA, dp=4, zero_group=2, micro_batch=1)
GPIPE2 = replace(PP2, dp=2, zero_group=2, schedule="gpipe")
ZB_H1_2 = replace(ZB_H1, dp=2, zero_group=2)
ZB_INTERLEAVED2 = replace(ZB_H1_2, virtual_stages=3, schedule="zb-interleaved")
ZB_V2 = replace(ZB_V, dp=2, zero_group=2)
DUALPIPE_V2 = replace(DUALPIPE_V, dp=2, zero_group=2, micro_batch=1)
CASES: dict[str, Uniform] = {
    "hybrid-zero1": replace(HYBRID, zero=1),
    "hybrid-zero2": replace(HYBRID, zero=2),
    "hybrid-fsdp": replace(HYBRID, zero=3, recompute="full"),
    "hybrid-cp2-zero2": replace(FP32, dp=2, cp=2, zero=2, zero_group=1),
    "hybrid-tp2-zero1": replace(
        FP32, dp=2, tp=2, zero=1, zero_group=1, sequence_parallel=True
    ),
    "hybrid-zero1-optimizer-away": replace(HYBRID, zero=1, offload=OPTIMIZER),
    "hybrid-zero2-optimizer-away": replace(HYBRID, zero=2, offload=OPTIMIZER),
    "hybrid-fsdp-optimizer-away": replace(HYBRID, zero=3, offload=OPTIMIZER),
    "hybrid-fsdp-states-away": replace(
        HYBRID, zero=3, recompute="full", offload=STATES
    ),
    "hybrid-tp2-zero2-optimizer-away": replace(
        FP32,
        dp=2,
        tp=2,
        zero=2,
        zero_group=1,
        sequence_parallel=True,
        offload=OPTIMIZER,
    ),
    "hybrid-zero2-zb-h1-optimizer-away": replace(
        ZB_H1_2, zero=2, zero_group=1, offload=OPTIMIZER
    ),
    "hybrid-zero2-drive": replace(HYBRID, zero=2, offload=ON_DRIVE),
    "hybrid-fsdp-states-drive": replace(HYBRID, zero=3, offload=STATES_ON_DRIVE),
    "hybrid-zero1-chimera": replace(CHIMERA2, zero=1, zero_group=1),
    "hybrid-zero2-chimera": replace(CHIMERA4, zero=2),
    "hybrid-fsdp-chimera-states-away": replace(CHIMERA4, zero=3, offload=STATES),
    "zero1-chimera": replace(CHIMERA2, zero=1),
    "zero2-chimera": replace(CHIMERA2, zero=2, recompute="full"),
    "fsdp-chimera": replace(CHIMERA2, zero=3),
    "cp2-chimera-zero1": replace(CHIMERA, cp=2, zero=1),
    "zero1-chimera-optimizer-away": replace(CHIMERA2, zero=1, offload=OPTIMIZER),
    "fsdp-chimera-optimizer-away": replace(CHIMERA2, zero=3, offload=OPTIMIZER),
    "hybrid-zero1-drive": replace(HYBRID, zero=1, offload=ON_DRIVE),
    "zero1-chimera-drive": replace(CHIMERA2, zero=1, offload=ON_DRIVE),
    "zero2-chimera-drive": replace(CHIMERA2, zero=2, offload=ON_DRIVE),
    "zero2-zb-h1-drive": replace(ZB_H1_2, zero=2, offload=ON_DRIVE),
    "hybrid-zero1-zb-h1": replace(ZB_H1_2, zero=1, zero_group=1),
    "hybrid-zero2-zb-h1": replace(ZB_H1_2, zero=2, zero_group=1),
    "hybrid-fsdp-zb-v": replace(
        HYBRID, pp=2, zero=3, virtual_stages=2, schedule="zb-v"
    ),
    "hybrid-zero2-dualpipe-v": replace(DUALPIPE_V2, cp=2, zero=2, zero_group=1),
    "zero2-zb-h1-sqrt": replace(ZB_H1_2, zero=2, recompute="sqrt"),
    "tp2-fsdp-zb-v": replace(
        ZB_V, tp=2, sequence_parallel=True, zero=3, offload=STATES
    ),
    # One stage, which has the table twice: nothing is counted for both.
    "tied-zb-h1": replace(FP32, schedule="zb-h1"),
    "tied-fsdp-zb-h1": replace(
        FP32, dp=2, zero=3, zero_group=2, schedule="zb-h1", recompute="full"
    ),
    "zero2-zb-h1": replace(ZB_H1_2, zero=2),
    "fsdp-zb-h1": replace(ZB_H1_2, zero=3),
    "fsdp-zb-h1-sqrt": replace(ZB_H1_2, zero=3, recompute="sqrt"),
    "zero1-zb-interleaved": replace(ZB_INTERLEAVED2, zero=1),
    "zero2-zb-interleaved": replace(ZB_INTERLEAVED2, zero=2),
    "fsdp-zb-interleaved": replace(ZB_INTERLEAVED2, zero=3),
    "dp2-zb-v": replace(ZB_V2, zero=0, zero_group=1),
    "dp2-gpipe": replace(GPIPE2, zero=0, zero_group=1),
    "zero1-gpipe": replace(GPIPE2, zero=1),
    "fsdp-gpipe": replace(GPIPE2, zero=3),
    "zero2-zb-v": replace(ZB_V2, zero=2),
    "fsdp-zb-v-full": replace(ZB_V2, zero=3, recompute="full"),
    "fsdp-dualpipe-v": replace(DUALPIPE_V2, zero=3),
    "cp2-fsdp-zb-v": replace(ZB_V, cp=2, zero=3),
    "fsdp-zb-h1-optimizer-away": replace(ZB_H1_2, zero=3, offload=OPTIMIZER),
    "fsdp-zb-v-states-away": replace(ZB_V2, zero=3, offload=STATES),
    "zb-h1-states-away": replace(ZB_H1, zero=3, offload=STATES),
    "chimera-states-away": replace(CHIMERA, zero=3, offload=STATES),
    "fsdp-chimera-states-away": replace(CHIMERA2, zero=3, offload=STATES),
}
OF_EXPERTS: dict[str, Uniform] = {
    "hybrid-fsdp": replace(HYBRID, zero=3),
    "hybrid-fsdp-ep2-zb-h1": replace(HYBRID, pp=2, ep=2, zero=3, schedule="zb-h1"),
    "hybrid-ep2-zero2-optimizer-away": replace(HYBRID, ep=2, zero=2, offload=OPTIMIZER),
    "hybrid-ep2-zero1-chimera": replace(CHIMERA2, zero=1, zero_group=1, ep=2),
    "hybrid-ep2-fsdp-chimera": replace(CHIMERA4, zero=3, ep=2),
    "hybrid-ep2-zero2": replace(HYBRID, ep=2, zero=2),
    "dp2-ep2-chimera": replace(CHIMERA2, zero=0, zero_group=1, ep=2),
    "dp2-chimera": replace(CHIMERA2, zero=0, zero_group=1),
    "pp2-zb-v": ZB_V,
    "dp2-ep2-zb-h1": replace(ZB_H1, dp=2, zero=0, ep=2, recompute="full"),
    "zero1-ep2-dualpipe-v": replace(DUALPIPE_V2, zero=1, ep=2),
    "fsdp-ep2-zb-v": replace(ZB_V2, zero=3, ep=2),
    "tp2-ep2-zb-v": replace(ZB_V, tp=2, ep=2, sequence_parallel=True),
    "zero1-ep2-chimera": replace(CHIMERA2, zero=1, ep=2),
}
