"""What `profile` measures for a model is what prices look up for it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import local_shape
from profiles.hardware.precisions import precision
from profiles.measure.plan import operations
from profiles.models.catalog import model
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec
from profiles.samples.operator_keys import number_of
from tests.support.small_jobs import BIASED, DROPPING, GPT, LLAMA, MIXTURE, job


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
    [
        *(job(one) for one in (GPT, LLAMA, DROPPING, MIXTURE, BIASED)),
        of_catalogue("gpt-mini"),
    ],
    ids=["gpt", "llama", "dropping", "mixture", "biased", "gpt-mini"],
)
@pytest.mark.parametrize("number", ["fp32", "tf32", "fp8"])
def test_every_shape_that_is_priced_on_two_ranks_is_measured(
    trained: Job, number: str
) -> None:
    plan = operations(trained, parts=(1, 2), precisions=(number,), most_tokens=8192)
    measured = {(one.kind, one.shape, one.precision) for one in plan}
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
                wanted = number_of(operator, precision(number)).value
                key = kind, tuple(map(int, shape)), wanted
                assert key in measured, (operator.name, tp)


@pytest.mark.parametrize("spec", [MIXTURE, BIASED], ids=["mixture", "biased"])
def test_experts_are_measured_as_they_are_spread(spec: DecoderSpec) -> None:
    """Over ep, over tp's parts of a sequence, and in width."""
    trained = job(spec)
    plan = operations(trained, parts=(1, 2), precisions=("fp32",), most_tokens=8192)
    measured = {(one.kind, one.shape) for one in plan}
    block = trained.graph.block("expert-layer")
    for tp, cp, ep, etp in ((1, 1, 2, 1), (2, 1, 2, 1), (1, 2, 2, 1), (2, 1, 1, 2)):
        degrees = Degrees(
            tp=np.array(tp),
            cp=np.array(cp),
            micro_batch=np.array(2),
            seq_len=trained.seq_len,
            sequence_parallel=tp > 1,
            ep=np.array(ep),
            etp=np.array(etp),
        )
        for name in ("router", "top_k", "dispatch", "mlp_up", "mlp_down", "combine"):
            kind, shape = local_shape(block.operator(name), block, degrees)
            assert (kind, tuple(map(int, shape))) in measured, (name, tp, cp, ep, etp)
