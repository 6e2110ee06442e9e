"""The words of a stream, and that they read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.schedule.action import OF_A_STAGE, Action, Kind
from profiles.errors import InvalidSpec

SINGLE = [kind for kind in Kind if kind is not Kind.OVERLAP_F_B]


@st.composite
def single_actions(draw: st.DrawFn) -> Action:
    kind = draw(st.sampled_from(SINGLE))
    number = None if kind in OF_A_STAGE else draw(st.integers(0, 999))
    stage, copy = draw(st.integers(0, 127)), draw(st.integers(0, 3))
    return Action(kind=kind, stage=stage, micro_batch=number, copy=copy)


actions = single_actions() | st.builds(
    Action.overlap, single_actions(), single_actions()
)


@given(actions)
def test_the_text_form_reads_back(action: Action) -> None:
    assert Action.parse(str(action)) == action


@given(st.lists(single_actions(), unique=True))
def test_actions_sort_and_hash(some: list[Action]) -> None:
    assert sorted(sorted(some, reverse=True)) == sorted(some)
    assert len(set(some)) == len(some)


@pytest.mark.parametrize(
    "text", ["2F0", "1SEND_F3", "0UNSHARD", "0REDUCE_GRAD", "0D2H3", "12H2D0", "2F0@1"]
)
def test_the_words_are_the_known_ones(text: str) -> None:
    assert str(Action.parse(text)) == text


def test_an_overlapped_pair_is_written_as_pytorch_does() -> None:
    pair = Action.overlap(Action.parse("0F1"), Action.parse("1B0"))
    assert str(pair) == "(0F1;1B0)OVERLAP_F_B"


@pytest.mark.parametrize(
    "text", ["", "F0", "2X0", "2F", "0STEP3", "2F0@0", "(0F1)OVERLAP_F_B", "2F0 "]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        Action.parse(text)


def test_only_an_overlapped_pair_has_parts() -> None:
    with pytest.raises(InvalidSpec, match=r"use Action\.overlap"):
        Action(kind=Kind.OVERLAP_F_B, stage=0)
