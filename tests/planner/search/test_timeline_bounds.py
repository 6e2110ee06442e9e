"""What one timeline says of other candidates: true, and more than closed forms say."""

from __future__ import annotations

import numpy as np
import pytest

from planner.problem.space import Space
from planner.search.bounds import leaf_s
from planner.search.timeline_bounds import TimelineBounds
from tests.planner.search.test_patterns import MIXER, posed
from tests.support.problems import problem

SHOWN = 150


def never() -> bool:
    return False


@pytest.mark.parametrize(("pattern", "layers"), [("M-M*-M-M", 8), ("MM-M*--MM*", 10)])
def test_no_candidate_goes_below_the_timeline_of_another(
    pattern: str, layers: int
) -> None:
    asked = posed(pattern, layers, MIXER)
    space = Space.of(asked)
    columns = space.leaves(space.branches)
    chunked = np.flatnonzero(columns.virtual_stages > 1)
    assert len(chunked) > 50
    columns = columns.take(chunked[:: max(1, len(chunked) // SHOWN)])
    found = TimelineBounds(asked).seconds(columns, never)
    simulated = np.array(
        [
            asked.simulate(space.choice(columns, row)).estimate.step_time_s
            for row in range(len(columns))
        ]
    )
    assert np.all(found <= simulated * (1 + 1e-9))
    assert np.count_nonzero(found) > 0.8 * len(found)  # dualpipe-v is left out


def test_a_candidates_own_timeline_is_nearly_its_step() -> None:
    asked = posed("M-M*-M-M", 8, MIXER)
    space = Space.of(asked)
    columns = space.leaves(space.branches)
    in_turn = np.flatnonzero((columns.virtual_stages > 1) & ~columns.in_v)
    for row in in_turn[:: len(in_turn) // 12]:
        alone = columns.take(np.array([row]))
        estimate = asked.simulate(space.choice(columns, int(row))).estimate
        bound_s = TimelineBounds(asked).seconds(alone, never)[0]
        closed_s = leaf_s(asked, alone)[0]
        assert bound_s >= closed_s * (1 - 1e-9)
        assert bound_s >= 0.97 * estimate.step_time_s


def test_alike_layers_need_no_timeline() -> None:
    assert not TimelineBounds(problem()).are_tighter
