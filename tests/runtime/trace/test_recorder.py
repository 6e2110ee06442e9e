"""`runtime.trace.recorder`: every collective is seen, by whoever and in whichever
pass."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from costmodel.schedule.action import Action, Kind
from tests.runtime import record_cases, small_model
from tests.runtime.ranks import on_ranks
from tests.runtime.record_cases import BATCH, BLOCKS, GRID, WIDTH

FP32 = 4
INNER = 2 * WIDTH
BLOCK = 2 * WIDTH * INNER + INNER + WIDTH  # parameters
STREAM = BATCH * WIDTH * FP32  # bytes of the hidden states

# Forward and backward of each way to be parallel: (count, bytes of full tensors).
WAYS = {
    "ddp": ({}, {"dp:all_reduce": [1, BLOCKS * BLOCK * FP32]}),
    "fsdp False": (
        {"dp:all_gather": [BLOCKS, BLOCKS * BLOCK * FP32]},
        {"dp:reduce_scatter": [BLOCKS, BLOCKS * BLOCK * FP32]},
    ),
    "fsdp True": (
        {"dp:all_gather": [BLOCKS, BLOCKS * BLOCK * FP32]},
        {
            "dp:all_gather": [BLOCKS, BLOCKS * BLOCK * FP32],
            "dp:reduce_scatter": [BLOCKS, BLOCKS * BLOCK * FP32],
        },
    ),
    "tp": (
        {"tp:all_reduce": [BLOCKS, BLOCKS * STREAM]},
        {"tp:all_reduce": [BLOCKS, BLOCKS * STREAM]},
    ),
    # Recomputing stops at the last tensor that was saved: before the last all-reduce.
    "tp recomputed": (
        {"tp:all_reduce": [BLOCKS, BLOCKS * STREAM]},
        {"tp:all_reduce": [2 * BLOCKS - 1, (2 * BLOCKS - 1) * STREAM]},
    ),
    "tp sequence": (
        {
            "tp:all_gather": [BLOCKS, BLOCKS * STREAM],
            "tp:reduce_scatter": [BLOCKS, BLOCKS * STREAM],
        },
        {
            "tp:all_gather": [BLOCKS, BLOCKS * STREAM],
            "tp:reduce_scatter": [BLOCKS, BLOCKS * STREAM],
        },
    ),
}


@cache
def watched() -> list[dict[str, Any]]:
    return on_ranks(2, record_cases.watched)


@cache
def grid() -> list[dict[str, Any]]:
    return on_ranks(4, record_cases.grid)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_be_parallel_shows_its_collectives(way: str) -> None:
    forward, backward = WAYS[way]
    for rank in watched():
        assert rank[way] == [
            {"action": "0F0", "collectives": forward},
            {"action": "0B0", "collectives": backward},
        ]


def test_bytes_are_those_of_the_full_tensor_by_axis() -> None:
    mine = 2 * 3 * FP32
    for rank in watched():
        (row,) = rank["plain"]
        assert row == {
            "action": "0STEP",
            "collectives": {
                "dp:all_gather": [2, 2 * (2 * mine)],
                "dp:all_reduce": [2, 2 * mine],
                "dp:all_to_all": [1, 4 * 3 * FP32],
                "dp:broadcast": [1, mine],
                "dp:reduce_scatter": [1, 4 * 3 * 2],
                "dp:send": [1, mine],
                "other:all_reduce": [1, mine],
            },
        }


def test_replicas_of_a_pipeline_each_talk_to_their_own_neighbour() -> None:
    found = {
        name: gradient
        for rank in grid()
        for name, gradient in rank["gradients"].items()
    }
    wanted, _ = small_model.single(2 * GRID.micro_batches)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient)


def test_an_action_shows_the_traffic_of_its_own_axis() -> None:
    stage = small_model.parts(GRID.stages)[0]
    sizes = [FP32 * parameter.numel() for parameter in stage.parameters()]
    boundary = FP32 * small_model.ROWS * small_model.WIDTH
    for rank in grid():
        for row in rank["recorded"]:
            kind = Action.parse(row["action"]).kind
            wanted = {
                Kind.SEND_F: {"pp:send": [1, boundary]},
                Kind.SEND_B: {"pp:send": [1, boundary]},
                Kind.REDUCE_GRAD: {"dp:all_reduce": [len(sizes), sum(sizes)]},
            }
            assert row["collectives"] == wanted.get(kind, {})
