"""What `profile` measures for a model is what prices look up for it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from costmodel.local_shape import local_shape
from costmodel.sharding import Degrees
from profiles.job import Job
from profiles.measure.plan import operations
from profiles.models.catalog import model
from profiles.models.spec import DecoderSpec
from tests.small_jobs import DROPPING, GPT, LLAMA, job


def of_catalogue(name: str) -> Job:
    known = model(name)
    assert isinstance(known.spec, DecoderSpec)
    return Job(
        model=name,
        spec=known.spec,
        seq_len=known.seq_len,
        global_batch=known.global_batch,
    )


@pytest.mark.parametrize(
    "trained",
    [job(GPT), job(LLAMA), job(DROPPING), of_catalogue("gpt-mini")],
    ids=["gpt", "llama", "dropping", "gpt-mini"],
)
def test_every_shape_that_is_priced_on_two_ranks_is_measured(trained: Job) -> None:
    plan = operations(trained, parts=(1, 2), precisions=("fp32",), most_tokens=8192)
    measured = {(one.kind, one.shape) for one in plan}
    batches = [size for size in (1, 2, 4, 8) if trained.global_batch % size == 0]
    for tp, batch, split in product((1, 2), batches, (False, True)):
        degrees = Degrees(
            tp=np.array(tp),
            cp=np.array(1),
            micro_batch=np.array(batch),
            seq_len=trained.seq_len,
            sequence_parallel=split and tp > 1,
        )
        for block in trained.graph.distinct():
            for operator in block.operators:
                kind, shape = local_shape(operator, block, degrees)
                assert (kind, tuple(map(int, shape))) in measured, (operator.name, tp)
