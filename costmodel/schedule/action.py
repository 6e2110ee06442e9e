"""An action: one thing that one pipeline rank does for one virtual stage.

A stream of actions is what the runtime executes and what the timeline prices. The
words and the text form are PyTorch's (`torch.distributed.pipelining.schedules`);
`D2H`, `H2D` and `STEP` stand beside them, and `@1` marks the second copy of a
bidirectional pipeline.

`Shape`: the size of a pipeline, and the integers that stand for its passes, so that a
pipeline of 65,536 passes is built in milliseconds. A *slot* is a virtual stage of one
copy: stage s of copy c is slot c · stages + s. A backward that runs at once with the
forward before it in the stream is coded as OVERLAP_F_B of its own slot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InvalidSpec


class Kind(StrEnum):
    """What an action does."""

    F = "F"  # forward
    B = "B"  # backward, of inputs and weights together
    I = "I"  # noqa: E741  backward of the inputs alone
    W = "W"  # backward of the weights alone
    SEND_F = "SEND_F"  # activations to the next stage
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"  # gradients to the stage before
    RECV_B = "RECV_B"
    UNSHARD = "UNSHARD"  # gather sharded parameters
    RESHARD = "RESHARD"  # let them go
    REDUCE_GRAD = "REDUCE_GRAD"  # over the data-parallel ranks
    OVERLAP_F_B = "OVERLAP_F_B"  # a forward and a backward at once
    D2H = "D2H"  # saved activations to the host
    H2D = "H2D"
    STEP = "STEP"  # the optimizer


OF_A_STAGE: Final = (Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD, Kind.STEP)
_SINGLE: Final = sorted(
    (kind.value for kind in Kind if kind is not Kind.OVERLAP_F_B), key=len, reverse=True
)
_TEXT: Final = re.compile(rf"(\d+)({'|'.join(_SINGLE)})(\d+)?(?:@([1-9]\d*))?")
_OVERLAP: Final = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Action:
    """*kind* for micro-batch *micro_batch* of virtual stage *stage* in model order.

    `micro_batch` is None for the kinds in `OF_A_STAGE`. `parts` are the forward and
    the backward of an OVERLAP_F_B, which takes its stage from the first.

    >>> str(Action(kind=Kind.F, stage=2, micro_batch=0))
    '2F0'
    >>> Action.parse("1SEND_F3").micro_batch
    3
    """

    kind: Kind
    stage: int
    micro_batch: int | None = None
    copy: int = 0
    parts: tuple[Action, ...] = ()

    def __post_init__(self) -> None:
        whole = self.kind in OF_A_STAGE or self.kind is Kind.OVERLAP_F_B
        if (self.micro_batch is None) != whole:
            rule = "takes no" if whole else "needs a"
            raise InvalidSpec(
                f"{self.kind} of stage {self.stage} has micro_batch="
                f"{self.micro_batch}; {self.kind} {rule} micro-batch"
            )
        if (self.kind is Kind.OVERLAP_F_B) != (len(self.parts) == 2):
            raise InvalidSpec(
                f"{self.kind} of stage {self.stage} has {len(self.parts)} parts; only "
                "OVERLAP_F_B has parts, two of them: use Action.overlap"
            )

    @classmethod
    def overlap(cls, forward: Action, backward: Action) -> Action:
        """A forward and a backward that run at once, as in DualPipeV."""
        parts = (forward, backward)
        return cls(
            kind=Kind.OVERLAP_F_B, stage=forward.stage, copy=forward.copy, parts=parts
        )

    @classmethod
    def parse(cls, text: str) -> Action:
        """The action that *text* names; `Action.parse(str(a)) == a`."""
        if both := _OVERLAP.fullmatch(text):
            return cls.overlap(cls.parse(both[1]), cls.parse(both[2]))
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InvalidSpec(
                f"{text!r} is not an action; write stage, kind and micro-batch, such "
                f"as '2F0', '1SEND_F3' or '0REDUCE_GRAD'; kinds: {', '.join(Kind)}"
            )
        stage, kind, micro_batch, copy = match.groups()
        return cls(
            kind=Kind(kind),
            stage=int(stage),
            micro_batch=None if micro_batch is None else int(micro_batch),
            copy=int(copy or 0),
        )

    def __str__(self) -> str:
        if self.parts:
            return f"({';'.join(map(str, self.parts))}){self.kind}"
        number = "" if self.micro_batch is None else self.micro_batch
        copy = f"@{self.copy}" if self.copy else ""
        return f"{self.stage}{self.kind}{number}{copy}"


Stream = tuple[Action, ...]  # what one pipeline rank does, in order


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
        kind = code // (self.micro_batches * self.slots)
        return COMPUTE[kind] is Kind.OVERLAP_F_B
