"""Gradients reduced behind backward: DDP's buckets and DAPPLE's drain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.estimate import Estimate
from costmodel.timeline import simulate
from profiles.units import GB, MB
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
