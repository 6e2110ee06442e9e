"""Gradients reduced behind backward: DDP's buckets, DAPPLE's drain, ACE's engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import (
    frameworks,
    load_framework,
    with_buckets,
    with_overlap,
)
from costmodel.simulation.estimator import Estimate
from costmodel.timeline.timeline import simulate
from profiles.hardware.catalog import cluster
from profiles.hardware.clusters import Figure
from profiles.units import GB, KB, MB
from tests.golden.priced import job_of, machine_of, priced
from tests.support import sampled
from tests.support.pipelines import Pipeline, plain_costs
from tests.support.rows import Obtained

SIZES = [10 * KB, 100 * KB, 1 * MB, 10 * MB, 25 * MB, 100 * MB, 400 * MB, 100 * GB]


def on_eight_ranks(bucket_bytes: float, *, hides: bool = True) -> Estimate:
    base = machine_of("meshwright")
    grad = frozenset({"grad"})
    framework = with_buckets(base.framework, bucket_bytes)
    framework = with_overlap(
        framework, framework.overlap.hidden | grad if hides else frozenset()
    )
    return priced(
        job_of("gpt-1.3b", 8), replace(base, framework=framework), dp=8, zero=0
    )


def parts_s(found: Estimate) -> tuple[float, float, float]:
    """Forward, backward, reduction of all gradients."""
    costs = found.timeline.costs
    return (
        float(costs.forward_s[0]),
        float(costs.backward_s[0]),
        float(costs.reduce_s[0]),
    )


def update_s(bucket_bytes: float) -> float:
    """What ends a step whose reduction is not hidden."""
    costs = on_eight_ranks(bucket_bytes, hides=False).timeline.costs
    return float(costs.step_s[0] + costs.gather_s[0])


@pytest.mark.row(
    "D3",
    "step of one bucket over forward + backward + all-reduce + optimizer",
    expected="1",
    evidence="computed",
)
def test_one_bucket_hides_nothing_and_costs_nothing(obtained: Obtained) -> None:
    """Li et al. (VLDB 2020): the bucket is ready when the last gradient is, so that
    T = forward + backward + all-reduce + optimizer, exactly."""
    size = 1000 * GB
    found = on_eight_ranks(size)
    assert found.timeline.costs.buckets == 1
    wanted = sum(parts_s(found)) + update_s(size)
    obtained(f"{found.step_time_s / wanted:g}")
    assert found.step_time_s == pytest.approx(wanted, rel=1e-12)
    alone = on_eight_ranks(size, hides=False)
    assert found.breakdown_s == pytest.approx(alone.breakdown_s)


def test_what_hides_slows_backward_by_its_share() -> None:
    """end(k) = max(ready(k), end(k − 1)) + reduction: with many buckets behind a longer
    backward the last one is left, and what computing beside the others costs."""
    for size in (25 * MB, 400 * MB):
        found = on_eight_ranks(size)
        forward, backward, reduce_s = parts_s(found)
        assert reduce_s < backward
        last = reduce_s / float(np.max(found.timeline.costs.buckets))
        lost = machine_of("meshwright").framework.overlap.contention * (reduce_s - last)
        wanted = forward + backward + last + lost + update_s(size)
        assert found.step_time_s == pytest.approx(wanted, rel=1e-12)
        alone = on_eight_ranks(size, hides=False)
        gained = alone.breakdown_s["data_comm"] - found.breakdown_s["data_comm"]
        assert gained == pytest.approx(reduce_s - last - lost)
        assert found.breakdown_s["optimizer"] == alone.breakdown_s["optimizer"]


@pytest.mark.parametrize("size", SIZES)
def test_overlap_is_never_slower_than_none(size: float) -> None:
    hidden, exposed = (on_eight_ranks(size, hides=one) for one in (True, False))
    assert hidden.step_time_s <= exposed.step_time_s


@given(
    name=st.sampled_from(list(frameworks())),
    size=st.floats(3, 12).map(lambda power: 10**power),
    tp=st.sampled_from((1, 2)),
    pp=st.sampled_from((1, 2, 4)),
    dp=st.sampled_from((2, 8, 32)),
    zero=st.integers(0, 3),
    parts=st.sampled_from((1, 2)),
)
@settings(max_examples=40, deadline=None)
def test_nor_is_it_in_any_framework(
    name: str, size: float, tp: int, pp: int, dp: int, zero: int, parts: int
) -> None:
    base, job = (
        with_buckets(load_framework(name), size),
        job_of("gpt-350m", 4 * dp, 1024),
    )
    shards = {"zero": zero, "zero_group": dp // parts if zero else 1}
    hidden, exposed = (
        priced(
            job,
            machine(cluster("dgx-a100-80gb"), with_overlap(base, overlap)),
            **{"tp": tp, "pp": pp, "dp": dp, "sequence_parallel": tp > 1, **shards},
        ).step_time_s
        for overlap in (base.overlap.hidden | {"grad"}, base.overlap.hidden - {"grad"})
    )
    assert hidden <= exposed * (1 + 1e-9)


@pytest.mark.row("D3", "step over bucket size", expected="U-shaped")
def test_the_best_bucket_is_neither_small_nor_whole(obtained: Obtained) -> None:
    """Li et al.'s sweep is U-shaped: each of many small buckets has a latency, few
    large ones hide little."""
    seconds = [on_eight_ranks(size).step_time_s for size in SIZES]
    best = seconds.index(min(seconds))
    obtained(", ".join(f"{one:.2f} s" for one in seconds))
    assert 0 < best < len(SIZES) - 1
    assert seconds[: best + 1] == sorted(seconds[: best + 1], reverse=True)
    assert seconds[best:] == sorted(seconds[best:])
    assert seconds[0] > 2 * seconds[best]


def test_buckets_may_be_too_small_where_messages_are_measured() -> None:
    """The same sweep, with the latencies of this machine's messages."""
    base = machine(sampled.local(), samples=sampled.samples(sampled.job()))
    hiding = base.framework.variant(overlap={"hidden": frozenset({"grad"})})
    sizes = (10 * KB, 100 * KB, 1 * MB, 4 * MB, 100 * MB)
    seconds = [
        priced(
            sampled.job(),
            replace(base, framework=hiding.variant(gradients={"bucket_bytes": size})),
            dp=4,
            precision="fp32",
        ).step_time_s
        for size in sizes
    ]
    best = seconds.index(min(seconds))
    assert sizes[best] == 1 * MB
    assert seconds[: best + 1] == sorted(seconds[: best + 1], reverse=True)
    assert seconds[best:] == sorted(seconds[best:])
    assert len(set(seconds)) == len(sizes)


@pytest.mark.row(
    "E10",
    "what is exposed of stage i",
    expected="max(0, AR(i) - i B)",
    evidence="computed",
)
@pytest.mark.parametrize(
    "reduce_s",
    [(0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0), (0.0, 1.5, 9.0, 7.0), (5, 6, 7, 9)],
)
def test_a_stages_reduction_hides_behind_the_drain(
    reduce_s: tuple[float, ...], obtained: Obtained
) -> None:
    """Fan et al. (PPoPP 2021): stage i's gradients are done i backwards before those of
    stage 0, so that max(0, AR(i) − i·B) is added to a pipeline of equal stages."""
    pipeline = Pipeline("1f1b", 4, 1, 6)
    backward = 2.0
    costs = plain_costs(pipeline, reduce_s=np.array(reduce_s, dtype=float))
    exposed = max(max(0.0, one - i * backward) for i, one in enumerate(reduce_s))
    drained = (6 + 4 - 1) * (1.0 + backward)
    obtained(f"{simulate(*pipeline, costs).makespan_s - drained:g}")
    assert simulate(*pipeline, costs).makespan_s == pytest.approx(drained + exposed)


def over_a_network_of(gbit_per_s: float, *, taken: float) -> Machine:
    """FSDP on eight nodes; compute loses *taken* of its hidden communication's time."""
    speed = Figure(value=gbit_per_s, unit="Gbit/s", source="one port a node")
    where = cluster("dgx-a100-80gb").with_bandwidth(inter=speed)
    found = machine(where, load_framework("fsdp2"))
    return replace(
        found, framework=found.framework.variant(overlap={"contention": taken})
    )


@pytest.mark.row(
    "F5",
    "speed-up by an engine for collectives",
    expected="1.0 to 1.5; most over 1.1 (printed: 1.41, 1.12, 1.13)",
)
@pytest.mark.parametrize("zero", [0, 3])
def test_an_engine_for_collectives_gains_up_to_a_half(
    zero: int, obtained: Obtained
) -> None:
    """Rashidi et al. (ISCA 2021): 1.12 to 1.41 times the speed where collectives take
    neither multiprocessors nor memory from compute. Most where they take as long as
    compute; where the network is fast, or is all there is to wait for, little."""
    own = over_a_network_of(100, taken=0.0)
    taken = machine(own.cluster, load_framework("fsdp2")).framework.overlap.contention
    job = job_of("gpt-1.3b", 256)
    group = 64 if zero else 1
    shape = {"dp": 64, "micro_batch": 4, "zero": zero, "zero_group": group}
    gains = [
        priced(job, over_a_network_of(speed, taken=taken), **shape).step_time_s
        / priced(job, over_a_network_of(speed, taken=0.0), **shape).step_time_s
        for speed in (1, 10, 50, 100, 200, 800)
    ]
    assert all(1 < gain < 1.5 for gain in gains)
    most = gains.index(max(gains))
    obtained(f"{min(gains):.2f} to {max(gains):.2f}")
    assert gains[most] > 1.1
    assert gains[: most + 1] == sorted(gains[: most + 1])
    assert gains[most:] == sorted(gains[most:], reverse=True)
