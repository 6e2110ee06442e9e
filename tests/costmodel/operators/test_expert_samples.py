"""Experts as they were measured: each pass is its sample, the exchange its messages."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from zlib import crc32

import numpy as np
import pytest

from costmodel.machine.assembly import Machine, machine
from costmodel.operators.degrees import Degrees, load, routed_rows, sent_rows
from costmodel.operators.operator_cost import operator_price
from costmodel.operators.work import Work
from profiles.hardware.precisions import precision
from profiles.measure.plan import operations
from profiles.models.graph import Block
from profiles.models.job import Job
from profiles.samples.table import Samples
from tests.oracles.expert_traffic import expert_messages
from tests.support.sampled import collective_key, local, operator_key, sample
from tests.support.small_jobs import MIXTURE, job

COUNTS, ROWS = 4 * 8, 64 * 32 * 4  # 2 sequences × 16 tokens × 2 experts, 32 wide
MESSAGE_S = {COUNTS: 1e-3, ROWS: 5e-3}


def seconds(kind: str, direction: str, *shape: int) -> float:
    return 1e-3 + crc32(repr((kind, direction, shape)).encode()) % 1000 / 1e6


@cache
def on() -> Machine:
    """Two ranks whose samples are those that `profile` takes for a small mixture."""
    plan = operations(job(MIXTURE), parts=(1, 2), precisions=("fp32",), most_tokens=64)
    found = Samples(
        operators={
            operator_key(one.kind, one.direction, one.shape, 2): sample(
                seconds(one.kind, one.direction, *one.shape)
            )
            for one in plan
        },
        collectives={
            collective_key("all_to_all", 2, size): sample(taken_s)
            for size, taken_s in MESSAGE_S.items()
        },
        machine={},
        cluster=local(2),
    )
    return machine(local(2), samples=found).running(2)


def degrees(ep: int, cp: int = 1) -> Degrees:
    return Degrees(
        tp=np.asarray(1),
        cp=np.asarray(cp),
        micro_batch=np.asarray(2),
        seq_len=16,
        sequence_parallel=False,
        ep=np.asarray(ep),
    )


def block(trained: Job | None = None) -> Block:
    return (trained or job(MIXTURE)).graph.block("expert-layer")


def passes(name: str, ep: int) -> tuple[Work, Work]:
    found = operator_price(
        block().operator(name), block(), degrees(ep), precision("fp32"), on()
    )
    return found.forward, found.backward


@pytest.mark.parametrize("ep", [1, 2])
def test_products_are_those_of_the_experts_that_a_rank_holds(ep: int) -> None:
    for name, columns, contracted in (("mlp_up", 64, 32), ("mlp_down", 32, 32)):
        shape = (64, 4 // ep, columns, contracted)
        halves = ("backward-input", "backward-weight")
        back_s = sum(seconds("grouped-matmul", half, *shape) for half in halves)
        forward, backward = passes(name, ep)
        assert forward.compute_s == pytest.approx(
            seconds("grouped-matmul", "forward", *shape)
        )
        assert backward.compute_s == pytest.approx(back_s)
        assert backward.measured_s == pytest.approx(back_s)


@pytest.mark.parametrize(
    ("name", "again"), [("dispatch", "permute"), ("combine", "unpermute")]
)
def test_rows_are_sorted_once_more_where_others_sent_them(
    name: str, again: str
) -> None:
    for ep in (1, 2):
        for way, found in zip(("forward", "backward"), passes(name, ep), strict=True):
            twice_s = seconds(again, way, 64, 32) if ep > 1 else 0.0
            once_s = seconds(name, way, 64, 2, 32)
            assert found.compute_s == pytest.approx(once_s + twice_s), (ep, way)


def test_the_exchange_is_its_messages_and_their_sizes_first() -> None:
    forward, backward = passes("dispatch", 2)
    assert forward.expert_comm_s == pytest.approx(MESSAGE_S[ROWS] + MESSAGE_S[COUNTS])
    assert backward.expert_comm_s == pytest.approx(MESSAGE_S[ROWS])
    assert passes("dispatch", 1)[0].expert_comm_s == 0


@pytest.mark.parametrize(
    ("factor", "cp", "each"),
    [(1.0, 1, 8), (0.3, 1, 3), (9.0, 1, 16), (0.3, 2, 2), (1.25, 2, 5)],
)
def test_experts_of_a_fixed_capacity_get_as_much(
    factor: float, cp: int, each: int
) -> None:
    """⌈factor · 2 · T / 4⌉ of each sequence's T = 16 tokens, or of a rank's 8; never
    more than there are. Nobody has to be told how many come."""
    assert MIXTURE.moe is not None
    spec = replace(MIXTURE, moe=replace(MIXTURE.moe, capacity_factor=factor))
    layer, over = block(job(spec)), degrees(2, cp)
    assert sent_rows(layer, over) == routed_rows(layer, over) == 2 * 4 * each
    assert load(layer, replace(over, imbalance=2.0)) == 1.0
    operator = layer.operator("dispatch")
    (sent,) = expert_messages("forward", operator, layer, over, precision("fp32"))
    assert sent == ("ep", "all_to_all", 2 * 4 * each * 32 * 4)
