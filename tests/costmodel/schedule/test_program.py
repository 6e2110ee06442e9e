"""Compiled streams say the same as the spelled ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from costmodel.schedule.action import NOTHING, Action, Kind
from costmodel.schedule.communication import apart
from costmodel.schedule.program import program_of
from costmodel.schedule.schedules import copies_held, streams
from tests.support.pipelines import Pipeline, pipelines

GRADIENTS = (Kind.B, Kind.I)


@given(pipelines())
def test_a_program_is_its_streams(pipeline: Pipeline) -> None:
    program = program_of(*pipeline)
    for rank, stream in enumerate(map(apart, streams(*pipeline))):
        found = tuple(program.action(rank, k) for k in range(len(stream)))
        assert found == stream
        assert (program.codes[rank, len(stream) :] == NOTHING).all()


@given(pipelines())
def test_the_order_respects_streams_and_transfers(pipeline: Pipeline) -> None:
    program = program_of(*pipeline)
    held_by = copies_held(*pipeline[:3])
    actions = program.rows.shape[1]
    at = [0] * pipeline.pp
    done: list[Action | None] = []
    for number, place in enumerate(program.order.tolist()):
        rank, position = divmod(place, actions)
        assert (rank, position) == (program.ranks[number], at[rank])
        at[rank] += 1
        if program.rows[rank, position] < 0:
            done.append(None)
            continue
        action = program.action(rank, position)
        awaited = program.awaits[number]
        before = done[awaited - 1] if awaited else None
        assert same_pass(before, needed(action, held_by[action.copy], rank))
        done.append(action)


def needed(action: Action, held_by: tuple[int, ...], rank: int) -> Action | None:
    """The pass on another rank that makes what *action* receives."""
    step = -1 if action.kind is Kind.F else 1
    stage = action.stage + step
    inside = 0 <= stage < len(held_by) and action.kind is not Kind.W
    if not inside or held_by[stage] == rank:
        return None
    return replace(action, stage=stage)


def same_pass(one: Action | None, other: Action | None) -> bool:
    """Whether both are none, or alike but for the gradient that they make."""
    if one is None or other is None:
        return one is other
    alike = one.kind is other.kind or {one.kind, other.kind} <= {*GRADIENTS}
    return alike and one == replace(other, kind=one.kind)


@given(pipelines())
def test_last_backwards(pipeline: Pipeline) -> None:
    program = program_of(*pipeline)
    actions, shape = program.rows.shape[1], program.shape
    each = pipeline.micro_batches // shape.copies
    for slot in range(shape.slots):
        copy, stage = divmod(slot, shape.stages)
        last = program.action(*divmod(int(program.last_backward[slot]), actions))
        assert (last.stage, last.copy) == (stage, copy)
        assert last.kind in (Kind.B, Kind.W)
        assert last.micro_batch == (copy + 1) * each - 1
