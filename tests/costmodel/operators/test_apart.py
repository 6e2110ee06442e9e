"""`costmodel.operators.host_overhead`: a message costs what it was measured to, so
long after another."""

from __future__ import annotations

from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest

from costmodel.machine.assembly import Machine, machine
from costmodel.operators.degrees import Degrees
from costmodel.operators.host_overhead import apart_s
from costmodel.stages.block_cost import block_prices
from profiles.hardware.precisions import precision
from profiles.samples.operator_keys import BESIDE, GAPS, SOON
from profiles.samples.table import Samples
from tests.support.sampled import collective_key, job, local, on, sample, samples

FP32 = precision("fp32")
SIZE = 2**20
TWO = np.asarray(2)
SOON_S, LONG_S = 0.001, 0.009
PLAIN_S, QUICK_S, BESIDE_S = 3e-3, 1e-3, 1.5e-3


def known(gaps: str = f"{SOON_S} {LONG_S}", beside_s: float = BESIDE_S) -> Machine:
    """All-reduces of SIZE among two ranks, long after another, soon, and beside."""
    seconds = {"": PLAIN_S, SOON: QUICK_S, BESIDE: beside_s}
    few = Samples(
        collectives={
            collective_key(f"all_reduce{how}", 2, SIZE): sample(one)
            for how, one in seconds.items()
        },
        machine={GAPS: gaps} if gaps else {},
    )
    return machine(local(2), samples=few).running(2)


def seconds(where: Machine, size: float = SIZE, **how: bool) -> float:
    found = where.collective(
        "all_reduce", np.asarray(float(size)), ranks=TWO, near=TWO, **how
    )
    return float(found.seconds)


@pytest.mark.parametrize(
    ("after_s", "expected"),
    [
        (0.0, QUICK_S),
        (SOON_S, QUICK_S),
        (sqrt(SOON_S * LONG_S), (QUICK_S + PLAIN_S) / 2),
        (LONG_S, PLAIN_S),
        (inf, PLAIN_S),
    ],
)
def test_between_two_gaps_the_price_goes_with_the_logarithm(
    after_s: float, expected: float
) -> None:
    where = known().sending(np.asarray(after_s))
    assert seconds(where) == pytest.approx(expected)


def test_who_does_not_say_comes_long_after() -> None:
    assert seconds(known()) == pytest.approx(PLAIN_S)


@pytest.mark.parametrize("after_s", [0.0, inf])
def test_a_product_beside_saves_the_waiting(after_s: float) -> None:
    where = known().sending(np.asarray(after_s))
    assert seconds(where, beside=True) == pytest.approx(BESIDE_S)


def test_what_is_saved_of_larger_messages_stays_the_same() -> None:
    larger = 16 * SIZE
    assert seconds(known(), larger, beside=True) == pytest.approx(
        seconds(known(), larger) - (PLAIN_S - BESIDE_S)
    )


def test_a_sample_that_came_out_slower_saves_nothing() -> None:
    where = known(beside_s=2 * PLAIN_S)
    assert seconds(where, beside=True) == pytest.approx(PLAIN_S)


def test_profiles_without_them_are_read_as_before() -> None:
    plain = known(gaps="").sending(np.asarray(0.0))
    assert not plain.knows_gaps
    assert seconds(plain) == pytest.approx(PLAIN_S)


def degrees(tp: int = 1, cp: int = 1, *, split: bool = False) -> Degrees:
    return Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(cp),
        micro_batch=np.asarray(2),
        seq_len=job().seq_len,
        sequence_parallel=split,
        cp_kind="all-gather",
    )


# Two sums a pass; along the sequence each is a scatter and a gather, and the input of
# either column-split product is gathered once more; keys and values gathered twice,
# scattered once.
@pytest.mark.parametrize(
    ("asked", "messages"),
    [
        (degrees(tp=2), 4),
        (degrees(tp=2, split=True), 10),
        (degrees(cp=2), 3),
        (degrees(tp=2, cp=2), 7),
    ],
)
def test_what_lies_between_is_a_layers_compute_over_its_messages(
    asked: Degrees, messages: int
) -> None:
    layer, where = job().graph.block("layer"), on("gpt-tiny", 4)
    prices = block_prices(layer, asked, FP32, where)
    total = sum(
        float(price.forward.compute_s + price.backward.compute_s)
        for price in prices.values()
    )
    found = float(apart_s(layer, asked, FP32, prices))
    assert found == pytest.approx(total / messages)


def test_who_sends_nothing_has_no_gap() -> None:
    layer, where = job().graph.block("layer"), on("gpt-tiny", 4)
    prices = block_prices(layer, degrees(), FP32, where)
    assert float(apart_s(layer, degrees(), FP32, prices)) == inf


def test_a_layer_sends_as_soon_as_it_computes_little() -> None:
    """All-reduces beside products, and soon after one another, cost less."""
    every = samples(job(), 2)
    plain = {
        key: one
        for key, one in every.collectives.items()
        if not key.collective.endswith((SOON, BESIDE))
    }
    few = replace(every, collectives=plain)
    quick = {
        replace(key, collective=key.collective + how): replace(
            one, seconds=one.seconds / 2
        )
        for key, one in few.collectives.items()
        for how in (SOON, BESIDE)
    }
    told = replace(
        few,
        collectives={**few.collectives, **quick},
        machine={**few.machine, GAPS: "10 20"},
    )
    layer = job().graph.block("layer")
    before, after = (
        sum(
            float(price.forward.tensor_comm_s + price.backward.tensor_comm_s)
            for price in block_prices(
                layer,
                degrees(tp=2),
                FP32,
                machine(local(2), samples=one).running(2),
            ).values()
        )
        for one in (few, told)
    )
    assert after == pytest.approx(before / 2)
