"""Transfers around passes, gradients after the last one."""

from __future__ import annotations

from costmodel.schedule.action import Action, Stream
from costmodel.schedule.communication import with_transfers


def stream(text: str) -> Stream:
    return tuple(map(Action.parse, text.split()))


def full(holders: tuple[int, ...], *texts: str) -> list[str]:
    found = with_transfers([stream(text) for text in texts], holders)
    return [" ".join(map(str, one)) for one in found]


def test_neighbours_on_one_rank_need_no_transfer() -> None:
    """A V: stages 1 and 2 meet on rank 1."""
    first, second = full((0, 1, 1, 0), "0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0")
    assert first == (
        "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 3REDUCE_GRAD "
        "0RECV_B0 0B0 0REDUCE_GRAD 0STEP"
    )
    assert second == (
        "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 2REDUCE_GRAD "
        "1B0 1SEND_B0 1REDUCE_GRAD 1STEP"
    )


def test_a_split_backward_sends_early_and_reduces_late() -> None:
    _, second = full((0, 1), "0F0 0I0 0W0", "1F0 1I0 1W0")
    assert second == "1RECV_F0 1F0 1I0 1SEND_B0 1W0 1REDUCE_GRAD 1STEP"


def test_copies_go_their_own_ways() -> None:
    """Two pipelines in opposite directions, as in Chimera."""
    streams = [stream("0F0 1F1@1 1B1@1 0B0"), stream("0F1@1 1F0 1B0 0B1@1")]
    first, second = with_transfers(streams, (0, 1), (1, 0))
    assert Action.parse("1RECV_F1@1") in first
    assert Action.parse("1SEND_B1@1") in first
    assert [str(one) for one in second if one.micro_batch is None] == [
        "1REDUCE_GRAD",
        "0REDUCE_GRAD@1",
        "0STEP@1",
    ]


def test_an_overlapped_pair_receives_and_sends_for_both() -> None:
    (_, second) = full((0, 1), "0F0 0F1 0B0 0B1", "1F0 (1F1;1B0)OVERLAP_F_B 1B1")
    assert "1RECV_F1 (1F1;1B0)OVERLAP_F_B 1SEND_B0" in second


def test_a_rank_without_work_does_not_step() -> None:
    assert full((0,), "0F0 0B0", "")[1] == ""
