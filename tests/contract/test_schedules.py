"""Every schedule through one suite: executable, complete, and in PyTorch's order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from costmodel.schedule.communication import with_transfers
from costmodel.schedule.schedules import copies_held, require_schedule, streams
from profiles.errors import InvalidSpec
from tests.oracles.schedule_proof import check
from tests.support.pipelines import Pipeline, pipelines


@given(pipelines(max_batches=12))
def test_every_schedule_can_be_executed(pipeline: Pipeline) -> None:
    held_by = copies_held(*pipeline[:3])
    whole = with_transfers(streams(*pipeline), *held_by)
    check(whole, *held_by, micro_batches=pipeline.micro_batches)


@given(pipelines())
def test_streams_are_cached(pipeline: Pipeline) -> None:
    assert streams(*pipeline) is streams(*pipeline)


SHAPES = [
    *[(pp, 2, m) for pp, m in ((2, 2), (2, 5), (3, 4), (4, 7), (4, 8), (5, 13))],
    *[(2, 1, 2), (4, 1, 3), (4, 1, 9), (2, 2, 4), (4, 2, 8), (4, 3, 4), (3, 2, 9)],
]
NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zb-h1": "InterleavedZeroBubble",
    "zb-interleaved": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}


def allowed(pipeline: Pipeline) -> bool:
    try:
        require_schedule(*pipeline)
    except InvalidSpec:
        return False
    return True


ALL = (Pipeline(schedule, *shape) for schedule in NAMES for shape in SHAPES)
CASES = [pipeline for pipeline in ALL if allowed(pipeline)]


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", CASES, ids=str)
def test_the_order_is_pytorchs(pipeline: Pipeline) -> None:
    """Also its words: each action is written the same.

    The order that PyTorch tells of the last rank under 1F1B starts with micro-batch 1
    (what it executes starts with 0), so that rank is left out.
    """
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kind = schedules.get_schedule_class(NAMES[pipeline.schedule])
    theirs = object.__new__(kind)  # without stages, which need devices
    theirs._num_stages, theirs.pp_group_size = pipeline.stages, pipeline.pp
    theirs.num_stages = pipeline.stages
    theirs._n_microbatches = pipeline.micro_batches
    theirs.n_local_stages = pipeline.virtual_stages
    rounds = max(1, pipeline.micro_batches // pipeline.pp)
    if pipeline.virtual_stages == 1:
        rounds = 1
    theirs.microbatches_per_round = pipeline.micro_batches // rounds
    ranks = range(pipeline.pp - (pipeline.schedule == "1f1b"))
    for rank in ranks:
        wanted = [str(action) for action in _order(theirs, rank) if action is not None]
        passes = [text for text in wanted if not text.endswith("REDUCE_GRAD")]
        assert list(map(str, streams(*pipeline)[rank])) == passes


def _order(schedule: Any, rank: int) -> Any:
    if hasattr(schedule, "_calculate_single_rank_operations"):
        return schedule._calculate_single_rank_operations(rank)
    return schedule._get_pipeline_order()[rank]
