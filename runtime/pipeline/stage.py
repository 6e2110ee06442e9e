"""What an `Executor` is given: the stages that it calls, and what else a step does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import nn

from costmodel.schedule import Kind, Stream, apart
from profiles.errors import InvalidSpec, Unsupported
from runtime.models import Later

CARRIED_OUT: Final = (
    *(Kind.F, Kind.B, Kind.I, Kind.W, Kind.OVERLAP_F_B),
    *(Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B),
    *(Kind.REDUCE_GRAD, Kind.STEP),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """A virtual stage on this rank: what to call, and the tensor that comes in.

    `first` takes tokens; `last` takes targets too and returns the mean loss.
    `boundary` and `dtype` are of the hidden states between stages. `copy` is which copy
    of the model it is of; `later` is there (`split_backward.put_off`) where its stream
    splits backwards.
    """

    index: int
    module: nn.Module
    first: bool
    last: bool
    boundary: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    copy: int = 0
    later: Later | None = None


class Hooks(Protocol):
    """What a step does beside the passes. *stage* is the virtual stage's index."""

    def forward(self, stage: int) -> AbstractContextManager[object]:
        """Around a forward."""

    def backward(
        self, stage: int, kind: Kind, last: bool
    ) -> AbstractContextManager[object]:
        """Around B, I or W; *last* if it is the stage's last of the step."""

    def reduce(self, stage: int) -> None:
        """REDUCE_GRAD: the stage's gradients are whole when this returns."""

    def step(self) -> None:
        """STEP: the update."""


def require_executable(
    stream: Stream, stages: Mapping[int, PipelineStage], micro_batches: int
) -> None:
    """Raise Unsupported or InvalidSpec for what an `Executor` does not carry out."""
    for action in (*stream, *apart(stream)):
        if action.kind not in CARRIED_OUT:
            raise Unsupported(
                f"{action} is simulated, not carried out; {', '.join(CARRIED_OUT)} are"
            )
        held = stages.get(action.stage)
        if held is None or held.copy != action.copy:
            raise InvalidSpec(
                f"{action} is of a stage that this rank does not hold; it holds "
                f"{', '.join(map(_shown, sorted(stages.values(), key=_index)))}"
            )
        if action.micro_batch is not None and action.micro_batch >= micro_batches:
            raise InvalidSpec(f"{action} is beyond the {micro_batches} micro-batches")
        if action.kind is Kind.I and held.later is None:
            raise InvalidSpec(
                f"{action} needs a stage whose backward is split; give it the `later` "
                "of split_backward.put_off"
            )


def _index(stage: PipelineStage) -> int:
    return stage.index


def _shown(stage: PipelineStage) -> str:
    return f"{stage.index}@{stage.copy}" if stage.copy else str(stage.index)
