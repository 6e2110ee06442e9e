"""Which ranks form a group, on one node and over several."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.measure.plan import exchanges
from profiles.measure.timing.collectives import groups
from profiles.units import KiB
from tests.profiles.measure.asked import REQUEST

CLUSTER = replace(REQUEST, ranks=8, nodes=2)


@pytest.mark.parametrize(
    ("ranks", "nodes", "found"),
    [
        (8, 2, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        (4, 2, [[0, 1, 4, 5], [2, 3, 6, 7]]),
        (2, 2, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (4, 1, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (2, 1, [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ],
)
def test_groups_are_even_over_nodes(
    ranks: int, nodes: int, found: list[list[int]]
) -> None:
    assert list(groups(ranks, nodes, CLUSTER)) == found


def test_one_node_is_as_ever() -> None:
    alone = replace(CLUSTER, ranks=4, nodes=1)
    assert list(groups(2, 1, alone)) == [[0, 1], [2, 3]]


def test_every_exchange_has_its_groups() -> None:
    plan = exchanges(4, nodes=2, most_bytes=KiB)
    assert len(set(plan)) == len(plan)
    for one in plan:
        made = list(groups(one.ranks, one.nodes, CLUSTER))
        first = made[: one.groups]
        assert len(first) == one.groups
        assert len({rank for peers in first for rank in peers}) == (
            one.ranks * one.groups
        )
        assert max(rank for peers in first for rank in peers) < 4 * one.nodes


def test_pairs_send_on_a_node_and_between_nodes() -> None:
    plan = exchanges(2, nodes=2, most_bytes=KiB)
    sent = {
        (one.ranks, one.nodes, one.groups) for one in plan if one.collective == "send"
    }
    assert sent == {(2, 1, 1), (2, 2, 1), (2, 2, 2)}
    alone = exchanges(1, nodes=2, most_bytes=KiB)
    assert {(one.ranks, one.nodes) for one in alone} == {(2, 2)}
