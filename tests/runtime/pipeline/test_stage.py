"""`runtime.pipeline.executor`: what an executor carries out, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from costmodel.schedule.action import Action, Kind
from profiles.errors import InvalidSpec, Unsupported
from runtime.pipeline.executor import CARRIED_OUT, PipelineStage, require_executable

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
        ("0F0 0I0 0W0", InvalidSpec, "0I0 needs a stage whose backward is split"),
        ("0UNSHARD 0F0 0B0", Unsupported, "0UNSHARD is simulated, not carried out; F"),
        ("0F0@1 0B0@1", InvalidSpec, "0F0@1 is of a stage .* hold; it holds 0"),
        ("(0F0;1B0)OVERLAP_F_B", InvalidSpec, "1B0 is of a stage .* does not hold"),
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


def test_the_actions_of_every_schedule_are_carried_out() -> None:
    placed = {Kind.UNSHARD, Kind.RESHARD, Kind.D2H, Kind.H2D}
    assert set(CARRIED_OUT) == set(Kind) - placed


def test_a_stage_of_another_copy_is_not_held() -> None:
    second = replace(ONLY, copy=1)
    require_executable((Action.parse("0F0@1"), Action.parse("0B0@1")), {0: second}, 1)
    with pytest.raises(InvalidSpec, match=r"0F0 is of .* it holds 0@1$"):
        require_executable((Action.parse("0F0"),), {0: second}, 1)
