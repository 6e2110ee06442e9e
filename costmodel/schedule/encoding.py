"""`Shape`: the size of a pipeline, and the integers that stand for its passes.

An action is coded as one integer, so that a pipeline of 65,536 passes is built in
milliseconds. A *slot* is a virtual stage of one copy: stage s of copy c is slot
c · stages + s. A backward that runs at once with the forward before it in the stream
is coded as OVERLAP_F_B of its own slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.schedule.action import Action, Kind

IntArray = NDArray[np.int64]
COMPUTE: Final = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.OVERLAP_F_B)  # first digits
NOTHING: Final = -1  # a code: what fills up the streams of ranks that do less


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many pipeline ranks, virtual stages of each, micro-batches and copies."""

    pp: int
    virtual_stages: int
    micro_batches: int
    copies: int = 1

    @property
    def stages(self) -> int:
        """Virtual stages of the model."""
        return self.pp * self.virtual_stages

    @property
    def slots(self) -> int:
        """Virtual stages of all copies."""
        return self.stages * self.copies

    def code(self, kind: Kind, slot: Any, micro_batch: Any) -> Any:
        """(kind, slot, micro-batch) as one integer; broadcasts."""
        row = COMPUTE.index(kind) * self.slots + slot
        return row * self.micro_batches + micro_batch

    def action(self, code: int) -> Action:
        """The pass that a code stands for; of an overlapped pair the backward."""
        row, micro_batch = divmod(code, self.micro_batches)
        kind, slot = divmod(row, self.slots)
        copy, stage = divmod(slot, self.stages)
        spelled = COMPUTE[kind]
        return Action(
            kind=Kind.B if spelled is Kind.OVERLAP_F_B else spelled,
            stage=stage,
            micro_batch=micro_batch,
            copy=copy,
        )

    def overlaps(self, code: int) -> bool:
        """Whether a code is of a backward that runs at once with a forward."""
        return code // (self.micro_batches * self.slots) == COMPUTE.index(
            Kind.OVERLAP_F_B
        )
