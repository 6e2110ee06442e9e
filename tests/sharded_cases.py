"""Layouts whose shards are not those of one dp axis and a whole backward, for tests.

Shards over a part of dp (HSDP), of one holder of a stage that has two (Chimera), and
scattered as W completes what I leaves; experts under those schedules. They join the
cases of `training_cases`.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.offload import Offload
from costmodel.uniform import Uniform

OPTIMIZER = Offload(optimizer=True)
ON_DRIVE = Offload(optimizer=True, tier="nvme")
STATES = Offload(optimizer=True, parameters=True)
FP32 = Uniform(precision="fp32", micro_batch=2)
HYBRID = replace(FP32, dp=4, zero_group=2, micro_batch=1)
SPLIT = replace(FP32, dp=2, pp=2, zero_group=2)
CHIMERA = replace(FP32, dp=2, pp=2, schedule="chimera", zero_group=2)
CASES: dict[str, Uniform] = {
    "hybrid-zero1": replace(HYBRID, zero=1),
    "hybrid-zero2": replace(HYBRID, zero=2),
    "hybrid-fsdp": replace(HYBRID, zero=3, recompute="full"),
    "hybrid-cp2-zero2": replace(FP32, dp=2, cp=2, zero=2, zero_group=1),
    "hybrid-tp2-zero1": replace(
        FP32, dp=2, tp=2, zero=1, zero_group=1, sequence_parallel=True
    ),
    "hybrid-zero1-optimizer-away": replace(HYBRID, zero=1, offload=OPTIMIZER),
    "zero1-chimera": replace(CHIMERA, zero=1),
    "zero2-chimera": replace(CHIMERA, zero=2, recompute="full"),
    "fsdp-chimera": replace(CHIMERA, zero=3),
    "cp2-chimera-zero1": replace(FP32, cp=2, pp=2, schedule="chimera", zero=1),
    "zero1-chimera-optimizer-away": replace(CHIMERA, zero=1, offload=OPTIMIZER),
    "fsdp-chimera-optimizer-away": replace(CHIMERA, zero=3, offload=OPTIMIZER),
    "hybrid-zero1-drive": replace(HYBRID, zero=1, offload=ON_DRIVE),
    "zero2-chimera-drive": replace(CHIMERA, zero=2, offload=ON_DRIVE),
    "zero2-zb-h1-drive": replace(SPLIT, zero=2, schedule="zb-h1", offload=ON_DRIVE),
    "hybrid-zero1-zb-h1": replace(SPLIT, zero=1, zero_group=1, schedule="zb-h1"),
    "hybrid-zero2-zb-h1": replace(SPLIT, zero=2, zero_group=1, schedule="zb-h1"),
    "hybrid-fsdp-zb-v": replace(
        HYBRID, pp=2, zero=3, virtual_stages=2, schedule="zb-v"
    ),
    "hybrid-zero2-dualpipe-v": replace(
        FP32,
        dp=2,
        cp=2,
        pp=2,
        zero=2,
        zero_group=1,
        micro_batch=1,
        virtual_stages=2,
        schedule="dualpipe-v",
    ),
    "zero2-zb-h1-sqrt": replace(SPLIT, zero=2, schedule="zb-h1", recompute="sqrt"),
    "tp2-fsdp-zb-v": replace(
        FP32,
        tp=2,
        pp=2,
        zero=3,
        virtual_stages=2,
        schedule="zb-v",
        sequence_parallel=True,
        offload=STATES,
    ),
    "zero2-zb-h1": replace(SPLIT, zero=2, schedule="zb-h1"),
    "fsdp-zb-h1": replace(SPLIT, zero=3, schedule="zb-h1"),
    "fsdp-zb-interleaved": replace(
        SPLIT, zero=3, virtual_stages=3, schedule="zb-interleaved"
    ),
    "zero2-zb-v": replace(SPLIT, zero=2, virtual_stages=2, schedule="zb-v"),
    "fsdp-zb-v-full": replace(
        SPLIT, zero=3, virtual_stages=2, schedule="zb-v", recompute="full"
    ),
    "fsdp-dualpipe-v": replace(
        SPLIT, zero=3, micro_batch=1, virtual_stages=2, schedule="dualpipe-v"
    ),
    "cp2-fsdp-zb-v": replace(
        FP32, cp=2, pp=2, zero=3, virtual_stages=2, schedule="zb-v"
    ),
    "fsdp-zb-h1-optimizer-away": replace(
        SPLIT, zero=3, schedule="zb-h1", offload=OPTIMIZER
    ),
    "fsdp-zb-v-states-away": replace(
        SPLIT, zero=3, virtual_stages=2, schedule="zb-v", offload=STATES
    ),
    "zb-h1-states-away": replace(FP32, pp=2, schedule="zb-h1", zero=3, offload=STATES),
    "chimera-states-away": replace(
        FP32, pp=2, schedule="chimera", zero=3, offload=STATES
    ),
    "fsdp-chimera-states-away": replace(CHIMERA, zero=3, offload=STATES),
}
OF_EXPERTS: dict[str, Uniform] = {
    "hybrid-fsdp": replace(HYBRID, zero=3),
    "hybrid-fsdp-ep2-zb-h1": replace(HYBRID, pp=2, ep=2, zero=3, schedule="zb-h1"),
    "hybrid-ep2-zero2": replace(HYBRID, ep=2, zero=2),
    "dp2-ep2-chimera": replace(CHIMERA, zero=0, zero_group=1, ep=2),
    "dp2-chimera": replace(CHIMERA, zero=0, zero_group=1),
    "pp2-zb-v": replace(FP32, pp=2, virtual_stages=2, schedule="zb-v"),
    "dp2-ep2-zb-h1": replace(
        SPLIT, zero=0, zero_group=1, ep=2, schedule="zb-h1", recompute="full"
    ),
    "zero1-ep2-dualpipe-v": replace(
        SPLIT, zero=1, ep=2, micro_batch=1, virtual_stages=2, schedule="dualpipe-v"
    ),
    "fsdp-ep2-zb-v": replace(SPLIT, zero=3, ep=2, virtual_stages=2, schedule="zb-v"),
    "tp2-ep2-zb-v": replace(
        FP32,
        tp=2,
        pp=2,
        ep=2,
        virtual_stages=2,
        schedule="zb-v",
        sequence_parallel=True,
    ),
    "zero1-ep2-chimera": replace(CHIMERA, zero=1, ep=2),
}
