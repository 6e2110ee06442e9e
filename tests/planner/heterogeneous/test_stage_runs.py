"""Many pipelines at once end when each of them does by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.timeline.timeline import simulate
from planner.heterogeneous.stage_runs import ends_s
from tests.support.pipelines import Pipeline, plain_costs


@given(
    stages=st.integers(1, 5),
    micro_batches=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
def test_each_ends_as_the_timeline_says(
    stages: int, micro_batches: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    forward_s, backward_s = draw.uniform(0.1, 3, (2, 4, stages))
    ways_s = draw.uniform(0, 8, (4, stages - 1))
    found = ends_s(forward_s, backward_s, ways_s, micro_batches)
    for number in range(4):
        half_s = ways_s[number] / 2
        costs = plain_costs(
            Pipeline("1f1b", stages, 1, micro_batches),
            forward_s=forward_s[number],
            backward_s=backward_s[number],
            send_forward_s=np.append(half_s, 0.0),
            send_backward_s=np.append(0.0, half_s),
        )
        run = simulate("1f1b", stages, 1, micro_batches, costs=costs)
        assert found[number] == pytest.approx(run.compute_end_s)
