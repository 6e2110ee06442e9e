"""Compressed activations: a tensor that backward needs, kept in fewer bits.

    bytes of an element   bits/8 + 4/256: a minimum and a scale in 16 bits for each
                          group of 256; in 16 bits a cast, and of a running range,
                          with neither
    seconds, each way     the whole tensor and the packed one move once: packed after
                          its forward, unpacked before its backward
    at work               the largest of a layer's tensors, whole again

After ActNN (Chen et al., ICML 2021) and GACT (Liu et al., ICML 2022), which round
stochastically to bits of a group; Mesa (Pan et al., 2021) keeps 8 of a range that runs
over the steps. What that does to training is not priced. Tensors that operators make
for themselves (masks, a kernel's row statistics) are kept as they are, but for a
softmax that is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from costmodel.layout import CORE, Action, Retention
from costmodel.machine import Machine, Sourced, traffic_s
from costmodel.operators.work import Work
from profiles.arrays import Array
from profiles.errors import InvalidSpec
from profiles.hardware import Precision
from profiles.models import Block, Element, Kind

GROUP: Final = 256  # elements with scales of their own (ActNN, actnn/conf.py)
SCALES_BYTES: Final = 4.0  # of a group: a minimum and a scale, 16 bits each
CAST_BITS: Final = 16


def element_bytes(bits: int, *, running: bool = False) -> float:
    """Bytes of an element that is kept in *bits*, with its share of the scales.

    >>> element_bytes(2)  # of fp32 a fifteenth
    0.265625
    """
    scales = 0.0 if running or bits == CAST_BITS else SCALES_BYTES / GROUP
    return bits / 8 + scales


def packable(block: Block) -> frozenset[str]:
    """The saved tensors of *block* that can be compressed: activations handed on, and
    the softmax of attention."""
    kept = {item for operator in block.operators for item in operator.saves}
    names = frozenset(
        item.name
        for item in kept
        if not item.internal and item.element is Element.ACTIVATION
    )
    attends = any(one.kind is Kind.ATTENTION for one in block.operators)
    return names | {CORE} if attends else names


def require_packable(retention: Retention, block: Block) -> None:
    """Raise InvalidSpec for compressing what is no activation that is handed on."""
    known = packable(block)
    for name, treatment in retention.tensors.items():
        wrong = name not in known and name != "*"
        if treatment.action is Action.COMPRESS and wrong:
            raise InvalidSpec(
                f"compress of {name}: only activations that operators hand on, and a "
                f"softmax, are compressed; choose among {', '.join(sorted(known))}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What compression does to a block: bytes it saves, and passes over tensors."""

    saved_bytes: Array = field(default_factory=lambda: np.zeros(()))
    largest_bytes: Array = field(default_factory=lambda: np.zeros(()))
    each_way: Work = field(default_factory=Work)  # forward, and again backward

    def __add__(self, other: Packed) -> Packed:
        return Packed(
            saved_bytes=self.saved_bytes + other.saved_bytes,
            largest_bytes=np.maximum(self.largest_bytes, other.largest_bytes),
            each_way=self.each_way + other.each_way,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packer:
    """How activations of *whole_bytes* an element are packed on a machine."""

    machine: Machine
    whole_bytes: float

    @classmethod
    def of(cls, machine: Machine, precision: Precision) -> Packer:
        """Where the software keeps operands of 8-bit products in their format, there is
        as much less to win."""
        whole = precision.activation.bytes
        if machine.framework.footprint.saves_quantised:
            whole = min(whole, precision.matmul.bytes)
        return cls(machine=machine, whole_bytes=whole)

    def packed(self, sizes: Mapping[str, Array], retention: Retention) -> Packed:
        """Of the tensors that *sizes* gives bytes of, those that *retention* packs."""
        saved, largest, work = np.zeros(()), np.zeros(()), Work()
        for name, size in sizes.items():
            treatment = retention.compressed(name)
            if treatment is None or treatment.bits is None:
                continue
            whole = size * treatment.ratio
            each = element_bytes(treatment.bits, running=treatment.running)
            share = min(1.0, each / self.whole_bytes)
            saved = saved + whole * (1 - share)
            largest = np.maximum(largest, whole)
            work = work + self._pass(whole * (1 + share))
        return Packed(saved_bytes=saved, largest_bytes=largest, each_way=work)

    def _pass(self, moved_bytes: Array) -> Work:
        on = self.machine
        host_s = on.framework.host.forward_s if on.has_host_floor else 0.0
        seconds = traffic_s(moved_bytes, device=on.device, rates=on.rates)
        return Work.of(Sourced(seconds=seconds), host_s=host_s)
