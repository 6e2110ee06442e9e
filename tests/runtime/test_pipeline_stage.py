"""`runtime.pipeline_stage`: what an executor carries out, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from costmodel.action import Action, Kind
from profiles.errors import InvalidSpec, Unsupported
from runtime.pipeline_stage import CARRIED_OUT, PipelineStage, require_executable

ONLY = PipelineStage(
    index=0,
    module=nn.Identity(),
    first=True,
    last=True,
    boundary=(1,),
    dtype=torch.float32,
    device=torch.device("cpu"),
)


@pytest.mark.parametrize(
    ("stream", "kind", "why"),
    [
        ("0F0 0I0 0W0", Unsupported, "0I0 is simulated, not carried out; F, B, "),
        ("0UNSHARD 0F0 0B0", Unsupported, "0UNSHARD is simulated"),
        ("0F0@1 0B0@1", Unsupported, "0F0@1 is simulated"),
        ("0F0 1F0", InvalidSpec, "1F0 is of a stage .* does not hold; it holds 0"),
        ("0F0 0F5", InvalidSpec, "0F5 is beyond the 5 micro-batches"),
    ],
)
def test_what_cannot_be_carried_out_is_said(
    stream: str, kind: type[Exception], why: str
) -> None:
    actions = tuple(map(Action.parse, stream.split()))
    with pytest.raises(kind, match=why):
        require_executable(actions, {0: ONLY}, 5)


def test_the_actions_of_the_three_schedules_are_carried_out() -> None:
    split = {Kind.I, Kind.W, Kind.OVERLAP_F_B}
    placed = {Kind.UNSHARD, Kind.RESHARD, Kind.D2H, Kind.H2D}
    assert set(CARRIED_OUT) == set(Kind) - split - placed
