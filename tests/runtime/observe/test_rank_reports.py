"""What ranks saw, put together: parts that sum to the step, calls without waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.schedule.action import Action
from runtime.observe.rank_reports import (
    Measured,
    Report,
    exchanges,
    levels,
    operators,
    parts,
    sends,
)
from runtime.trace.recorder import Call, Operation, Span


def spans(*told: tuple[str, float, float]) -> tuple[Span, ...]:
    return tuple(
        Span(action=Action.parse(text), began_s=began, ended_s=ended)
        for text, began, ended in told
    )


FIRST = spans(
    ("0F0", 0.0, 1.0),
    ("0SEND_F0", 1.0, 1.1),
    ("0RECV_B0", 1.1, 5.0),
    ("0B0", 5.0, 7.0),
    ("0REDUCE_GRAD", 7.0, 7.2),
    ("0STEP", 7.2, 7.7),
)
SECOND = spans(
    ("1RECV_F0", 0.0, 1.4),
    ("1F0", 1.4, 2.4),
    ("1B0", 2.4, 4.4),
    ("1SEND_B0", 4.4, 4.5),
    ("1REDUCE_GRAD", 4.5, 4.7),
    ("1STEP", 4.7, 5.2),
)
NORM = Call(
    action="STEP",
    axis="pp",
    ranks=(0, 1),
    collective="all_reduce",
    size_bytes=8,
    seconds=0.1,
)


def report(steps: tuple[Span, ...], norm_s: float) -> Report:
    return Report(
        pipeline=(0, 1),
        holders=(0, 1),
        boundary_bytes=4096,
        parameters=100,
        timed=(steps,),
        listened=(steps,),
        calls=(replace(NORM, seconds=norm_s),),
        operations=(),
    )


PIPELINE = [report(FIRST, 0.1), report(SECOND, 2.6)]


def test_parts_are_those_of_the_rank_that_ends_last() -> None:
    found = parts(PIPELINE, 8.0, 0.4, hides=False)
    assert sum(found.values()) == pytest.approx(8.0)
    assert found["compute"] == pytest.approx(3.0)
    assert found["pipeline_comm"] == pytest.approx(0.1 + 0.4)
    assert found["optimizer"] == pytest.approx(0.5 - 0.1)
    assert found["data_comm"] == pytest.approx(0.2)
    # What is left of the wait for the other stage, the norm's sum, and between actions.
    assert found["bubble"] == pytest.approx(3.5 + 0.1 + 0.3)


@pytest.mark.parametrize("hides", [False, True])
def test_what_a_pass_sends_is_no_compute(hides: bool) -> None:
    one = spans(("0F0", 0.0, 2.0), ("0B0", 2.0, 6.0), ("0STEP", 6.0, 6.5))
    sent = replace(NORM, action="B", axis="tp", seconds=1.5)
    alone = replace(report(one, 0.0), calls=(sent,))
    found = parts([alone], 6.5, None, hides=hides)
    assert found["tensor_comm"] == pytest.approx(1.5)
    assert found["compute"] == pytest.approx(4.5)


def test_where_ranks_have_cores_compute_is_what_they_were_busy() -> None:
    told = spans(("0F0", 0.0, 2.0), ("0B0", 2.0, 6.0), ("0STEP", 6.0, 6.5))
    timed = tuple(replace(one, busy_s=0.5 * one.seconds) for one in told)
    sent = replace(NORM, action="B", axis="cp", seconds=0.1)
    seen = replace(report(told, 0.0), calls=(sent,), timed=(timed,))
    found = parts([seen], 6.5, None, hides=False, own_core=True)
    assert found["compute"] == pytest.approx(3.0)
    assert found["context_comm"] == pytest.approx(3.0)  # and waiting for the others
    assert sum(found.values()) == pytest.approx(6.5)


def test_hidden_communication_costs_nothing() -> None:
    timed = spans(("0F0", 0.0, 2.0), ("0B0", 2.0, 4.5), ("0STEP", 4.5, 5.0))
    apart = spans(("0F0", 0.0, 2.0), ("0B0", 2.0, 6.0), ("0STEP", 6.0, 6.5))
    sent = replace(NORM, action="B", axis="dp", seconds=1.5)
    seen = replace(report(apart, 0.0), calls=(sent,), timed=(timed,))
    found = parts([seen], 5.0, None, hides=True)
    assert found["compute"] == pytest.approx(4.5)
    assert found["data_comm"] == pytest.approx(0.0)


def test_a_collective_takes_as_long_as_for_the_last_to_come() -> None:
    (found,) = exchanges(PIPELINE, local_ranks=2)
    assert found.seconds == (0.1,)
    assert (found.axis, found.collective, found.ranks) == ("pp", "all_reduce", (2,))
    assert (found.count, found.size_bytes, found.groups) == (1, 8, 1)
    (apart,) = exchanges(PIPELINE, local_ranks=1)
    assert apart.ranks == (1, 2)


def test_a_call_that_somebody_missed_is_left_out() -> None:
    assert exchanges([PIPELINE[0], replace(PIPELINE[1], calls=())], 2) == []


def test_a_message_is_timed_where_its_receiver_waited() -> None:
    found = sends(PIPELINE, local_ranks=2)
    assert found is not None
    assert found.seconds == pytest.approx((5.0 - 4.4, 1.4 - 1.0))
    assert (found.ranks, found.size_bytes) == ((2,), 4096)
    late = replace(
        PIPELINE[1],
        timed=(spans(("1RECV_F0", 1.05, 1.06), *_rest(SECOND)),),
    )
    found = sends([PIPELINE[0], late], local_ranks=2)
    assert found is not None
    assert found.seconds == pytest.approx((5.0 - 4.4,))


def _rest(steps: tuple[Span, ...]) -> list[tuple[str, float, float]]:
    return [(str(one.action), one.began_s, one.ended_s) for one in steps[1:]]


@pytest.mark.parametrize(
    ("ranks", "local", "found"),
    [((0, 1), 2, (2,)), ((0, 4), 4, (1, 2)), (range(8), 4, (4, 2))],
)
def test_levels(ranks: tuple[int, ...], local: int, found: tuple[int, ...]) -> None:
    assert levels(ranks, local) == found


def product(action: str, one: tuple[int, int], other: tuple[int, int]) -> Operation:
    return Operation(
        action=action, name="mm", shapes=(one, other), dtype="float32", seconds=0.5
    )


def test_a_products_backward_is_that_of_input_and_weight() -> None:
    passes = (
        product("F", (32, 8), (8, 16)),
        product("B", (32, 16), (16, 8)),
        product("B", (16, 32), (32, 8)),
    )
    seen = replace(PIPELINE[0], operations=passes)
    assert operators(seen, "adamw") == {
        Measured("matmul", "forward", (32, 16, 8), "fp32"): [0.5],
        Measured("matmul", "backward", (32, 16, 8), "fp32"): [1.0],
    }
    again = replace(PIPELINE[0], operations=(*passes, product("B", (32, 8), (8, 16))))
    assert [one.direction for one in operators(again, "adamw")] == ["forward"]


def test_what_a_step_does_once_is_of_all_parameters() -> None:
    told = [
        Operation(
            action="STEP", name=name, shapes=((10,),), dtype="float32", seconds=0.25
        )
        for name in ("_fused_adamw_", "_fused_adamw_", "_foreach_norm")
    ]
    found = operators(replace(PIPELINE[0], operations=tuple(told)), "adamw")
    # Nothing was clipped: a norm alone is not what the profile times.
    assert found == {Measured("adamw", "forward", (100,), "fp32"): [0.5]}
