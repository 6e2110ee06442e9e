"""Many at once are what each is alone: to the last bit."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.schedule.program import program_of
from costmodel.timeline import batched as timelines
from costmodel.timeline.batched import simulate_together, waves_of
from costmodel.timeline.costs import StageCosts
from costmodel.timeline.timeline import Timeline, simulate
from tests.support.pipelines import Pipeline, costs_of, pipelines, plain_costs


@st.composite
def asked(draw: st.DrawFn) -> tuple[Pipeline, StageCosts]:
    """A pipeline with any costs, or with sends that find no link busy."""
    pipeline = draw(pipelines())
    slow = draw(st.floats(0, 1))
    free = plain_costs(pipeline, send_forward_s=slow, send_backward_s=slow / 3)
    return pipeline, draw(st.just(free) | costs_of(pipeline))


@given(st.lists(asked(), max_size=6))
def test_side_by_side_is_each_alone(several: list[tuple[Pipeline, StageCosts]]) -> None:
    found = dict(simulate_together((program_of(*p), costs) for p, costs in several))
    assert sorted(found) == list(range(len(several)))
    for number, (pipeline, costs) in enumerate(several):
        same(found[number], simulate(*pipeline, costs))


def same(one: Timeline, other: Timeline) -> None:
    for item in fields(Timeline):
        if item.name not in ("program", "costs"):
            found, wanted = getattr(one, item.name), getattr(other, item.name)
            np.testing.assert_array_equal(found, wanted, err_msg=item.name)


def test_few_at_a_time_are_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "MOST_TOGETHER", 20)
    several = [Pipeline("1f1b", pp, 1, 4) for pp in (2, 3, 4, 1, 2)]
    asking = [(program_of(*one), plain_costs(one)) for one in several]
    found = dict(simulate_together(asking))
    steps = [found[number].makespan_s for number in range(5)]
    assert steps == [15, 18, 21, 12, 15]


@given(pipelines())
def test_a_wave_awaits_earlier_ones(pipeline: Pipeline) -> None:
    program = program_of(*pipeline)
    waves = waves_of(program)
    if waves is None:
        return
    ended = np.concatenate(([-1], waves.wave))  # when what has the number n is done
    assert np.all(ended[waves.before] < waves.wave)
    assert np.all(ended[program.awaited] < waves.wave)


@pytest.mark.parametrize("pipeline", [("1f1b", 4, 1, 8), ("interleaved", 4, 2, 8)])
def test_pipelines_run_in_waves(pipeline: tuple[str, int, int, int]) -> None:
    assert waves_of(program_of(*pipeline)) is not None


def test_1f1b_has_as_many_waves_as_unit_steps() -> None:
    """A rank has 2m passes; it starts, and the last gradient comes home, p - 1 late."""
    waves = waves_of(program_of("1f1b", 4, 1, 8))
    assert waves is not None
    assert waves.wave.max() + 1 == 2 * 8 + 2 * 3
