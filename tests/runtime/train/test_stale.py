"""`runtime.train.stale`: late gradients are as late as is said, on gloo ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from costmodel.schedule.schedules import versions_held
from tests.runtime import stale_cases as cases
from tests.runtime.ranks import on_ranks

RUNS = (5, 3)  # steps from a fill to its drain
CASES = [
    ("async-1f1b", 2, 1),
    ("async-1f1b", 4, 2),
    ("2bw", 2, 2),
    ("2bw", 4, 4),
    ("pipemare", 2, 1),
    ("pipemare", 4, 3),
    ("pb", 4, 1),
]


def apart(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Relative L2 distance of all parameters together."""
    assert found.keys() == wanted.keys()
    gaps = torch.stack([(found[name] - wanted[name]).norm() for name in wanted])
    sizes = torch.stack([wanted[name].norm() for name in wanted])
    return float(gaps.norm() / sizes.norm())


@pytest.mark.parametrize(("schedule", "pp", "batches"), CASES)
def test_ranks_train_as_one_process_with_the_same_delays(
    schedule: str, pp: int, batches: int
) -> None:
    layout, asked = cases.layout_of(schedule, pp, batches), cases.untied(batches)
    ranks: list[dict[str, Any]] = on_ranks(
        pp, cases.trained, layout, RUNS, cases.SGD, asked
    )
    wanted = cases.alone(layout, asked, RUNS)
    for rank in ranks:
        assert rank["losses"] == pytest.approx(wanted["losses"], rel=1e-6)
        assert rank["in_flight"] == 0
    for rank, parameters in zip(ranks, wanted["parameters"], strict=True):
        assert apart(rank["parameters"], parameters) < 1e-6
    most = [max(rank["held"]) for rank in ranks]
    assert most == versions_held(schedule, pp, batches).tolist()
