"""The queue gives branches by their floors, whatever the glances at them were."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.problem.table import Table, length
from planner.search import branch_queue
from planner.search.branch_queue import BranchQueue
from profiles.arrays import Array

values = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=0, max_size=40
)


def queue_of(pairs: list[tuple[int, int]]) -> tuple[BranchQueue, Array, list[int]]:
    """Branches whose floors are a glance and something more; what was looked at."""
    rough = np.array([glance for glance, _ in pairs], dtype=float)
    floors = rough + np.array([more for _, more in pairs], dtype=float)
    seen: list[int] = []

    def floor(some: Table) -> Array:
        seen.extend(some["row"].tolist())
        return np.asarray(floors[some["row"]])

    table = {"row": np.arange(len(pairs))}
    return BranchQueue(table, rough, floor), floors, seen


@pytest.fixture(autouse=True)
def _small_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch_queue, "FIRST_LOOK", 3)


@given(pairs=values, most=st.integers(1, 5))
def test_branches_come_in_the_order_of_their_floors(
    pairs: list[tuple[int, int]], most: int
) -> None:
    queue, floors, seen = queue_of(pairs)
    taken: list[int] = []
    while queue.least < inf:
        least = queue.least
        table, found = queue.take(most)
        assert found[0] == least
        assert 0 < length(table) <= most
        taken += table["row"].tolist()
    assert taken == np.lexsort((np.arange(len(floors)), floors)).tolist()
    assert sorted(seen) == list(range(len(pairs))), "each is looked at once"


@given(pairs=values)
def test_once_it_is_late_the_glance_has_to_do(pairs: list[tuple[int, int]]) -> None:
    def floor(_: Table) -> Array:
        raise AssertionError("nothing is looked at any more")

    rough = np.array([glance for glance, _ in pairs], dtype=float)
    table = {"row": np.arange(len(pairs))}
    queue = BranchQueue(table, rough, floor, late=lambda: True)
    assert queue.least == min((glance for glance, _ in pairs), default=inf)
    assert length(queue.take(5)[0]) == 0


@given(pairs=values, closed=st.integers(0, 9))
def test_what_is_closed_does_not_come(
    pairs: list[tuple[int, int]], closed: int
) -> None:
    queue, floors, _ = queue_of(pairs)
    gone = floors == closed
    _ = queue.least
    queue.close(gone)
    table, _ = queue.take(len(pairs) + 1)
    assert set(table["row"].tolist()) == set(np.flatnonzero(~gone).tolist())


def test_what_is_dear_at_a_glance_is_not_looked_at() -> None:
    pairs = [(one, 0) for one in range(1000)]
    queue, _, seen = queue_of(pairs)
    table, found = queue.take(5)
    assert table["row"].tolist() == [0, 1, 2, 3, 4]
    assert found.tolist() == [0, 1, 2, 3, 4]
    assert len(seen) < 20


def test_below_a_value_all_are_known() -> None:
    pairs = [(one % 7, one % 3) for one in range(60)]
    queue, floors, seen = queue_of(pairs)
    _, found = queue.take(1000, below=4.0)
    assert np.array_equal(np.sort(floors[floors < 4]), found)
    assert len(seen) < len(pairs)
