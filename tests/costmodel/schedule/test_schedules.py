"""Streams against the figures of their papers, and what is refused."""

from __future__ import annotations

import pytest

from costmodel.options import pins
from costmodel.schedule.schedules import (
    SCHEDULES,
    copies_held,
    holders,
    require_schedule,
    streams,
)
from profiles.errors import InvalidSpec, UnknownName


def spelled(schedule: str, pp: int, chunks: int, micro_batches: int) -> list[str]:
    found = streams(schedule, pp, chunks, micro_batches)
    return [" ".join(map(str, stream)) for stream in found]


def test_gpipe_passes_all_forwards_first() -> None:
    assert spelled("gpipe", 2, 1, 3) == [
        "0F0 0F1 0F2 0B0 0B1 0B2",
        "1F0 1F1 1F2 1B0 1B1 1B2",
    ]


def test_1f1b_runs_ahead_by_the_stages_behind() -> None:
    """PipeDream-Flush (Narayanan et al., ICML 2021), figure 2: rank 0, 1 and 3 of 4."""
    first, second, _, last = spelled("1f1b", 4, 1, 4)
    assert first == "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3"
    assert second == "1F0 1F1 1F2 1B0 1F3 1B1 1B2 1B3"
    assert last == "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3"


def test_interleaved_is_the_figure_of_megatron() -> None:
    """Narayanan et al., SC 2021, figure 4: 4 devices, 2 chunks, 8 micro-batches.

    There micro-batches count from 1 and the second chunk is drawn lighter.
    """
    first, *_, last = spelled("interleaved", 4, 2, 8)
    assert first.startswith(
        "0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1 4F4 4B2"
    )
    assert last.startswith("3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 3F4 3B0")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_one_rank_accumulates_gradients(schedule: str) -> None:
    assert spelled(schedule, 1, 1, 3) == ["0F0 0B0 0F1 0B1 0F2 0B2"]


def test_stages_go_round_the_ranks() -> None:
    assert holders("1f1b", 3, 1) == (0, 1, 2)
    assert holders("interleaved", 3, 2) == (0, 1, 2, 0, 1, 2)


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
def test_or_go_down_and_up_again(schedule: str) -> None:
    assert holders(schedule, 3, 2) == (0, 1, 2, 2, 1, 0)


def test_chimera_has_two_copies_in_opposite_directions() -> None:
    """Li and Hoefler (SC 2021), figure 3: 4 workers, 4 micro-batches, two each way."""
    assert copies_held("chimera", 4, 1) == ((0, 1, 2, 3), (3, 2, 1, 0))
    first, second, *_ = spelled("chimera", 4, 1, 4)
    assert first == "0F0 0F1 3F2@1 3B2@1 3F3@1 3B3@1 0B0 0B1"
    assert second == "1F0 2F2@1 1F1 2F3@1 2B2@1 1B0 2B3@1 1B1"


def test_zero_bubble_defers_weight_gradients_by_the_rank() -> None:
    """Qi et al. (ICLR 2024), section 3: ZB-H1, in PyTorch's order."""
    assert spelled("zb-h1", 2, 1, 3) == [
        "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2",
        "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2",
    ]


def test_dualpipe_overlaps_a_forward_and_a_backward() -> None:
    first, _ = spelled("dualpipe-v", 2, 2, 4)
    assert first.startswith("0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3;3B1)OVERLAP_F_B")
    assert first.endswith("3B3 0I2 0W2 0I3 0W3")


def test_an_unknown_schedule_suggests_a_known_one() -> None:
    with pytest.raises(UnknownName, match="did you mean 1f1b"):
        require_schedule("1f1", 4, 1, 8)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (("interleaved", 4, 2, 6), "choose 4 or 8"),
        (("interleaved", 4, 2, 3), "choose 4, or"),
        (("interleaved", 1, 2, 4), "pp >= 2"),
        (("interleaved", 4, 1, 4), "virtual_stages >= 2"),
        (("1f1b", 4, 2, 4), "virtual_stages=1"),
        (("gpipe", 4, 2, 4), "virtual_stages=1"),
        (("1f1b", 4, 1, 0), "at least one"),
        (("1f1b", 0, 1, 4), "at least 1"),
        (("zb-h1", 4, 2, 4), "virtual_stages=1"),
        (("zb-interleaved", 4, 2, 6), "choose 4 or 8"),
        (("zb-v", 4, 1, 4), "virtual_stages=2 and pp >= 2"),
        (("zb-v", 1, 2, 4), "virtual_stages=2 and pp >= 2"),
        (("dualpipe-v", 4, 2, 7), "choose 8 or more"),
        (("chimera", 3, 1, 4), "even pp"),
        (("chimera", 4, 1, 5), "choose 4 or 6"),
        (("async-1f1b", 1, 1, 4), "pp >= 2"),
        (("pipemare", 4, 2, 4), "virtual_stages=1"),
        (("2bw", 4, 1, 3), "choose 4 or more, or the schedule async-1f1b"),
    ],
)
def test_impossible_numbers_say_what_to_do(
    given: tuple[str, int, int, int], remedy: str
) -> None:
    with pytest.raises(InvalidSpec, match=remedy):
        require_schedule(*given)


def test_help_names_all_schedules() -> None:
    assert tuple(SCHEDULES) == pins.SCHEDULES
