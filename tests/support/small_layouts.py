"""Layouts of one mechanism on two or four ranks, of which tests make their cases."""

from __future__ import annotations

from dataclasses import replace

from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform

OPTIMIZER = Offload(optimizer=True)
STATES = Offload(optimizer=True, parameters=True)
ON_DRIVE = Offload(optimizer=True, tier="nvme")
SAVED_ON_DRIVE = Offload(activations=1.0, tier="nvme")
STATES_ON_DRIVE = Offload(optimizer=True, parameters=True, tier="nvme")

FP32 = Uniform(precision="fp32", micro_batch=2)
DP2 = replace(FP32, dp=2, zero=0)
ZERO1 = replace(FP32, dp=2, zero=1, zero_group=2)
ZERO2 = replace(ZERO1, zero=2)
FSDP = replace(ZERO1, zero=3)
HYBRID = replace(FP32, dp=4, zero_group=2, micro_batch=1)
SP = replace(FP32, tp=2, sequence_parallel=True)
FSDP_SP = replace(FSDP, tp=2, sequence_parallel=True)
CP2 = replace(FP32, cp=2, zero=0)
PP2 = replace(FP32, pp=2)
INTERLEAVED = replace(PP2, virtual_stages=2, schedule="interleaved")
ZB_H1 = replace(PP2, schedule="zb-h1")
ZB_V = replace(PP2, virtual_stages=2, schedule="zb-v")
DUALPIPE_V = replace(PP2, virtual_stages=2, schedule="dualpipe-v")
CHIMERA = replace(PP2, schedule="chimera")
