"""Context parallelism on a machine that was measured: of attention as much as a rank
does, and ring steps as everybody's at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.machine.assembly import Machine, machine
from costmodel.operators.attention import attention_work
from costmodel.operators.degrees import Degrees
from costmodel.operators.work import OnRank, Work
from profiles.hardware.precisions import precision
from profiles.models.graph import Kind
from tests.support.sampled import collective_key, job, local, on, sample, samples

RANKS = 4


def degrees(kind: str, cp: int, tp: int = 1) -> Degrees:
    return Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(cp),
        micro_batch=np.asarray(2),
        seq_len=job().seq_len,
        sequence_parallel=False,
        cp_kind=kind,
    )


def core(where: Machine, at: Degrees) -> tuple[Work, Work]:
    (block, operator), *_ = (
        (block, one)
        for block in job().graph.distinct()
        for one in block.operators
        if one.kind is Kind.ATTENTION
    )
    return attention_work(OnRank(operator, block, at, precision("fp32"), where))


@pytest.mark.parametrize("kind", ["ring", "all-gather"])
def test_a_rank_of_a_zig_zag_attends_as_much_as_the_others(kind: str) -> None:
    where = on(ranks=RANKS).running(RANKS)
    for whole, part in zip(
        core(where, degrees(kind, 1)), core(where, degrees(kind, 2)), strict=True
    ):
        assert part.compute_s == pytest.approx(whole.compute_s / 2)


def test_with_ulysses_a_rank_attends_with_some_heads_as_with_tensor_parallelism() -> (
    None
):
    where = on(ranks=RANKS).running(RANKS)
    for cut, part in zip(
        core(where, degrees("ulysses", 1, tp=2)),
        core(where, degrees("ulysses", 2)),
        strict=True,
    ):
        assert part.compute_s == pytest.approx(cut.compute_s)


def test_cpu_ranks_that_send_round_a_ring_wait_for_each_other() -> None:
    """A step costs what it was measured, once forward and twice backward; without a
    sample of it, a transfer."""
    known, step_s = samples(job(), RANKS), 0.25
    sizes = {key.size_bytes for key in known.collectives}
    steps = {
        collective_key("shift", 2, size, RANKS // 2): sample(step_s) for size in sizes
    }
    told = replace(known, collectives={**known.collectives, **steps})
    where = machine(local(RANKS), samples=told).running(RANKS)
    forward, backward = core(where, degrees("ring", 2))
    assert forward.context_comm_s == pytest.approx(step_s)
    assert backward.context_comm_s == pytest.approx(2 * step_s)
    forward, _ = core(on(ranks=RANKS).running(RANKS), degrees("ring", 2))
    assert 0 < forward.context_comm_s < step_s / 100
