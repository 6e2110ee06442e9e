"""Streams that cannot be executed are refused."""

from __future__ import annotations

from itertools import pairwise

import pytest

from costmodel.schedule.action import Action, Kind, Stream
from costmodel.schedule.communication import with_transfers
from costmodel.schedule.schedules import holders, streams
from profiles.errors import InvalidSpec
from tests.oracles.schedule_proof import check

CASES = [
    ("gpipe", 3, 1, 2),
    ("1f1b", 1, 1, 2),
    ("1f1b", 3, 1, 4),
    ("interleaved", 2, 2, 4),
    ("zb-h1", 3, 1, 4),
    ("zb-v", 3, 2, 4),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)
Case = tuple[str, int, int, int]


def full(case: Case) -> tuple[list[Stream], tuple[int, ...]]:
    schedule, pp, chunks, _ = case
    held_by = holders(schedule, pp, chunks)
    return list(with_transfers(streams(*case), held_by)), held_by


def replaced(given: list[Stream], rank: int, actions: list[Action]) -> list[Stream]:
    return [*given[:rank], tuple(actions), *given[rank + 1 :]]


@each_case
def test_no_action_can_be_left_out(case: Case) -> None:
    whole, held_by = full(case)
    for rank, stream in enumerate(whole):
        for row in range(len(stream)):
            less = [*stream[:row], *stream[row + 1 :]]
            with pytest.raises(InvalidSpec):
                check(replaced(whole, rank, less), held_by, micro_batches=case[3])


@each_case
def test_no_action_can_come_twice(case: Case) -> None:
    whole, held_by = full(case)
    for rank, stream in enumerate(whole):
        for row, action in enumerate(stream):
            more = [*stream[: row + 1], action, *stream[row + 1 :]]
            with pytest.raises(InvalidSpec):
                check(replaced(whole, rank, more), held_by, micro_batches=case[3])


@each_case
def test_backwards_and_sends_keep_their_order(case: Case) -> None:
    """Swapped: a forward and its backward; two sends over one link."""
    whole, held_by = full(case)
    for rank, stream in enumerate(whole):
        forwards = [one for one in stream if one.kind is Kind.F]
        kinds = (Kind.B, Kind.I)
        backward = {(o.stage, o.micro_batch): o for o in stream if o.kind in kinds}
        pairs = [(one, backward[one.stage, one.micro_batch]) for one in forwards]
        pairs += pairwise(one for one in stream if one.kind is Kind.SEND_F)
        for first, second in pairs:
            place = {first: second, second: first}
            swapped = [place.get(one, one) for one in stream]
            with pytest.raises(InvalidSpec):
                check(replaced(whole, rank, swapped), held_by, micro_batches=case[3])


def refusal(*texts: str, held_by: tuple[int, ...] = (0, 1), micro_batches: int) -> str:
    given = [tuple(map(Action.parse, text.split())) for text in texts]
    with pytest.raises(InvalidSpec) as refused:
        check(given, held_by, micro_batches=micro_batches)
    return str(refused.value)


def test_messages_are_received_in_the_order_they_are_sent() -> None:
    said = refusal(
        "0F0 0SEND_F0 0RECV_B1 0B1 0F1 0SEND_F1 0RECV_B0 0B0 0REDUCE_GRAD 0STEP",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1REDUCE_GRAD 1STEP",
        micro_batches=2,
    )
    assert "over (1, 0) comes ('SEND_B', 1, 0, 0), not ('SEND_B', 1, 1, 0)" in said


def test_ranks_that_wait_for_each_other_are_refused() -> None:
    said = refusal(
        "0F0 0SEND_F0 0RECV_B0 0B0 0F1 0SEND_F1 0RECV_B1 0B1 0REDUCE_GRAD 0STEP",
        "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1 1REDUCE_GRAD 1STEP",
        micro_batches=2,
    )
    assert "nothing can go on" in said


def test_a_pass_on_another_rank_is_refused() -> None:
    said = refusal("0F0 1F0 1B0 0B0", "", micro_batches=1)
    assert "1F0 (rank 0, 1) belongs to rank 1" in said


def test_a_stage_that_nobody_holds_is_refused() -> None:
    said = refusal("0F0 0B0 7RECV_F0", held_by=(0,), micro_batches=1)
    assert "7RECV_F0 (rank 0, 2) is of no stage" in said


@pytest.mark.parametrize("stray", ["0RECV_F0", "0RECV_B0", "0SEND_B0", "0SEND_F0"])
def test_nothing_comes_from_beyond_the_ends(stray: str) -> None:
    said = refusal(f"0F0 0B0 {stray} 0REDUCE_GRAD 0STEP", held_by=(0,), micro_batches=1)
    assert "is made" in said


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        ("0F0 0B0 0F1 0B1 0REDUCE_GRAD 0STEP", "0F1 is beyond the 1 micro-batches"),
        ("0F0 0I0 0REDUCE_GRAD 0STEP", "stage 0 does 0F0 0I0 for 0"),
        (
            "0UNSHARD 0F0 0B0 0REDUCE_GRAD 0STEP",
            "('parameters', 0, None, 0) is made 1 times, used 0",
        ),
        (
            "0F0 0D2H0 0B0 0REDUCE_GRAD 0STEP",
            "('activations', 0, 0, 0) is made 1 times, used 2",
        ),
        ("0F0 0REDUCE_GRAD 0B0 0STEP", "nothing can go on: [(0, 1), (0, 2), (0, 1)]"),
    ],
)
def test_leaks_are_refused(stream: str, why: str) -> None:
    assert why in refusal(stream, held_by=(0,), micro_batches=1)


def test_what_later_schedules_need_is_understood() -> None:
    """Split backwards, offload, unsharding, V placement, copies, overlapped pairs."""
    split = "0UNSHARD 0F0 0D2H0 0H2D0 0I0 0W0 0RESHARD 0REDUCE_GRAD 0STEP"
    check([tuple(map(Action.parse, split.split()))], (0,), micro_batches=1)
    texts = ["0F0 1F1@1 1B1@1 0B0", "0F1@1 1F0 1B0 0B1@1"]
    both = [tuple(map(Action.parse, text.split())) for text in texts]
    check(with_transfers(both, (0, 1), (1, 0)), (0, 1), (1, 0), micro_batches=2)
    pair = [tuple(map(Action.parse, ["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]))]
    check(with_transfers(pair, (0,)), (0,), micro_batches=2)


def test_a_micro_batch_takes_one_direction_only() -> None:
    both = [
        tuple(map(Action.parse, text.split()))
        for text in ("0F0 1F0@1 1B0@1 0B0", "0F0@1 1F0 1B0 0B0@1")
    ]
    with pytest.raises(InvalidSpec, match="share a micro-batch"):
        check(with_transfers(both, (0, 1), (1, 0)), (0, 1), (1, 0), micro_batches=1)
