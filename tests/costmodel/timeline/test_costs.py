"""Costs of another pipeline are refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.timeline.costs import require_costs
from profiles.errors import InvalidSpec
from tests.support.pipelines import Pipeline, plain_costs

COSTS = plain_costs(Pipeline("interleaved", 2, 2, 2))


def test_the_right_sizes_pass() -> None:
    require_costs(COSTS, 2, 4)
    require_costs(replace(COSTS, first_forward_extra_s=np.ones(4)), 2, 4)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("forward_s", "each of its 4 virtual stages"),
        ("last_backward_extra_s", "each of its 4 virtual stages"),
        ("step_s", "each of its 2 pipeline ranks"),
    ],
)
def test_a_wrong_size_is_named(name: str, said: str) -> None:
    wrong: dict[str, Any] = {name: np.ones(3)}
    with pytest.raises(InvalidSpec, match=f"{name} has the shape.*{said}"):
        require_costs(replace(COSTS, **wrong), 2, 4)


def test_a_reduction_has_buckets() -> None:
    with pytest.raises(InvalidSpec, match="buckets=0"):
        require_costs(replace(COSTS, buckets=0), 2, 4)
