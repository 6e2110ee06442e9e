"""Gradients reduced behind backward: DDP's buckets, DAPPLE's drain, ACE's engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.estimate import Estimate
from costmodel.machine import Machine, machine
from costmodel.software import software
from costmodel.timeline import simulate
from profiles.catalog import cluster
from profiles.figure import Figure
from profiles.units import GB, KB, MB
from tests import sampled
from tests.golden.priced import job_of, machine_of, priced
from tests.pipelines import Pipeline, plain_costs


def on_eight_ranks(bucket_bytes: float) -> Estimate:
    base = machine_of("meshwright")
    where = replace(base, software=replace(base.software, bucket_bytes=bucket_bytes))
    return priced(job_of("gpt-1.3b", 8), where, dp=8)


def parts_s(found: Estimate) -> tuple[float, float, float, float]:
    """Forward, backward, reduction of all gradients, what ends the step."""
    costs = found.timeline.costs
    return (
        float(costs.forward_s[0]),
        float(costs.backward_s[0]),
        float(costs.reduce_s[0]),
        float(costs.step_s[0] + costs.gather_s[0]),
    )


def test_one_bucket_hides_nothing() -> None:
    """Li et al. (VLDB 2020): the bucket is ready when the last gradient is, so that
    T = forward + backward + all-reduce + optimizer, exactly."""
    found = on_eight_ranks(1000 * GB)
    assert found.timeline.costs.buckets == 1
    assert found.step_time_s == pytest.approx(sum(parts_s(found)), rel=1e-12)


def test_smaller_buckets_hide_more_until_only_the_last_one_shows() -> None:
    """end(k) = max(ready(k), end(k − 1)) + reduction: with many buckets behind a longer
    backward, only the last bucket's reduction is left."""
    sizes = [100 * GB, 2 * GB, 400 * MB, 25 * MB]
    found = [on_eight_ranks(size) for size in sizes]
    seconds = [item.step_time_s for item in found]
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) == len(sizes)
    forward, backward, reduce_s, step = parts_s(found[-1])
    assert reduce_s < backward
    last = reduce_s / float(found[-1].timeline.costs.buckets)
    wanted = forward + backward + last + step
    assert found[-1].step_time_s == pytest.approx(wanted, rel=1e-12)


def test_buckets_may_be_too_small_where_messages_are_measured() -> None:
    """The same authors' sweep is U-shaped: many small buckets each have a latency, few
    large ones hide little. Fitted rates are of whole reductions, so that only measured
    messages have the left arm."""
    base = machine(sampled.local(), samples=sampled.samples(sampled.job()))
    hiding = replace(base.software, overlap=frozenset({"grad"}))
    sizes = (10 * KB, 100 * KB, 1 * MB, 4 * MB, 100 * MB)
    seconds = [
        priced(
            sampled.job(),
            replace(base, software=replace(hiding, bucket_bytes=size)),
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


@pytest.mark.parametrize(
    "reduce_s",
    [(0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0), (0.0, 1.5, 9.0, 7.0), (5, 6, 7, 9)],
)
def test_a_stages_reduction_hides_behind_the_drain(reduce_s: tuple[float, ...]) -> None:
    """Fan et al. (PPoPP 2021): stage i's gradients are done i backwards before those of
    stage 0, so that max(0, AR(i) − i·B) is added to a pipeline of equal stages."""
    pipeline = Pipeline("1f1b", 4, 1, 6)
    backward = 2.0
    costs = plain_costs(pipeline, reduce_s=np.array(reduce_s, dtype=float))
    exposed = max(max(0.0, one - i * backward) for i, one in enumerate(reduce_s))
    drained = (6 + 4 - 1) * (1.0 + backward)
    assert simulate(*pipeline, costs).makespan_s == pytest.approx(drained + exposed)


def over_a_network_of(gbit_per_s: float, *, taken: float) -> Machine:
    """FSDP on eight nodes; compute loses *taken* of its hidden communication's time."""
    speed = Figure(value=gbit_per_s, unit="Gbit/s", source="one port a node")
    where = cluster("dgx-a100-80gb").with_bandwidth(inter=speed)
    found = machine(where, software("fsdp2"))
    return replace(found, software=replace(found.software, contention=taken))


@pytest.mark.parametrize("zero", [0, 3])
def test_an_engine_for_collectives_gains_up_to_a_half(zero: int) -> None:
    """Rashidi et al. (ISCA 2021): 1.12 to 1.41 times the speed where collectives take
    neither multiprocessors nor memory from compute. Most where they take as long as
    compute; where the network is fast, or is all there is to wait for, little."""
    own = over_a_network_of(100, taken=0.0)
    taken = machine(own.cluster, software("fsdp2")).software.contention
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
    assert gains[most] > 1.1
    assert gains[: most + 1] == sorted(gains[: most + 1])
    assert gains[most:] == sorted(gains[most:], reverse=True)
