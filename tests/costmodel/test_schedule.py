"""Streams against the figures of their papers, and what is refused."""

from __future__ import annotations

import pytest

from costmodel.schedule import NOT_YET, holders, require_schedule, streams
from profiles.errors import InvalidSpec, UnknownName, Unsupported


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


@pytest.mark.parametrize("schedule", NOT_YET)
def test_a_known_schedule_says_what_is_carried_out(schedule: str) -> None:
    with pytest.raises(Unsupported, match="gpipe, 1f1b, interleaved"):
        holders(schedule, 4, 2)


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
    ],
)
def test_impossible_numbers_say_what_to_do(
    given: tuple[str, int, int, int], remedy: str
) -> None:
    with pytest.raises(InvalidSpec, match=remedy):
        require_schedule(*given)
