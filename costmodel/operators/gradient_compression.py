"""Gradients that are all-reduced in fewer bytes: how many, of those that there are.

bf16           a cast: two bytes each
powersgd:R     of an n × k matrix R·(n + k) numbers in fp32, where that is at most half;
               the rest as it is (Vogels et al., NeurIPS 2019; PyTorch's PowerSGD hook)
1bit[:STEPS]   after so many steps a sign each, of Adam's momentum (Tang et al., 1-bit
               Adam, ICML 2021), by an exchange of pieces and a gather: as much as an
               all-reduce of them

What it does to training is not priced, nor the passes over gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import extent, parameters
from profiles.errors import Contradiction, InvalidSpec
from profiles.hardware import Format, Precision
from profiles.models import Block, Job, ModelGraph, Operator

RULE: Final = "choose none, bf16, powersgd:RANK or 1bit[:WARMUP_STEPS]"
WARM_UP: Final = 100  # steps of 1-bit Adam that send whole gradients, if nobody says
LEAST_GAIN: Final = 2  # times that a matrix must shrink (PyTorch: min_compression_rate)
MOST: Final = 10**6
ADAM: Final = ("adam", "adamw")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCompression:
    """`number` is the rank of powersgd, the warm-up of 1bit."""

    kind: str = "none"
    number: int = 0

    @classmethod
    def parse(cls, text: str | None) -> GradientCompression:
        """As the option says it; raises InvalidSpec.

        >>> GradientCompression.parse("powersgd:4").number
        4
        """
        kind, _, number = (text or "none").partition(":")
        numbered = kind in ("powersgd", "1bit")
        known = numbered or kind in ("none", "bf16")
        right = number.isdecimal() and 1 <= int(number) <= MOST if number else True
        if not known or not right or (number and not numbered):
            raise InvalidSpec(f"--compress-gradients {text}: {RULE}")
        if kind == "powersgd" and not number:
            raise InvalidSpec(f"--compress-gradients {text} lacks its rank: {RULE}")
        usual = WARM_UP if kind == "1bit" else 0
        return cls(kind=kind, number=int(number or usual))

    def require(self, job: Job, *, zero: int, away: bool, copies: int) -> None:
        """Raise Contradiction where gradients of *job* are not all-reduced so: sharded,
        with states *away* from the device, or of several *copies* of a stage."""
        asked = f"--compress-gradients {self.kind}"
        if zero or away:
            held = f"ZeRO {zero}" if zero else "states that are offloaded"
            raise Contradiction(
                f"{asked} is of gradients that are all-reduced, those of ZeRO 0, and "
                f"the layout has {held}; plan with --zero 0, and without --offload of "
                "states"
            )
        if job.has_experts or copies > 1:
            raise Contradiction(
                f"{asked}: experts, and schedules of two copies, sum their gradients "
                "over groups of their own; leave it out"
            )
        if self.kind == "1bit" and job.optimizer not in ADAM:
            raise Contradiction(
                f"{asked} is 1-bit Adam, not {job.optimizer}; plan with --optimizer "
                "adamw"
            )

    def shrinks(self, rows: Any, columns: Any) -> Any:
        """Whether powersgd takes a matrix of so many."""
        sent = self.number * (rows + columns)
        return sent * LEAST_GAIN < rows * columns

    def share(self, graph: ModelGraph, tp: int, precision: Precision) -> float:
        """Bytes that travel, of those of all gradients."""
        each = precision.gradient.bytes
        if self.kind == "bf16":
            return min(1.0, Format.BF16.bytes / each)
        if self.kind == "1bit":
            return 1 / 8 / each
        if self.kind == "none":
            return 1.0
        degrees = Degrees(
            tp=np.asarray(tp),
            cp=np.asarray(1),
            micro_batch=np.asarray(1),
            seq_len=1,
            sequence_parallel=False,
        )
        # A table that is the head too is summed once: where it is looked up.
        again = {one for group in graph.tied for one in group[1:]}
        sent = whole = 0.0
        for block, count in graph.blocks:
            for operator in block.operators:
                if (block.name, operator.name) in again:
                    continue
                held = float(parameters(operator, block, degrees))
                whole += count * held * each
                sent += count * self._low_rank(operator, block, degrees, held, each)
        return sent / whole if whole else 1.0

    def _low_rank(
        self,
        operator: Operator,
        block: Block,
        degrees: Degrees,
        held: float,
        each: float,
    ) -> float:
        """Bytes that travel of an operator's *held* gradients of *each* so many."""
        if operator.contracted is None or not held:
            return held * each
        columns = float(extent(operator.contracted, block, degrees))
        rows = float(sum(extent(name, block, degrees) for name in operator.columns))
        if not self.shrinks(rows, columns):
            return held * each
        low = self.number * (rows + columns) * Format.FP32.bytes
        return low + (held - rows * columns) * each
