"""Compiled streams say the same as the spelled ones."""

from __future__ import annotations

from hypothesis import given

from costmodel.action import Kind
from costmodel.program import program_of
from costmodel.schedule import holders, streams
from tests.pipelines import Pipeline, pipelines


@given(pipelines())
def test_a_program_is_its_streams(pipeline: Pipeline) -> None:
    program = program_of(*pipeline)
    for rank, stream in enumerate(streams(*pipeline)):
        assert tuple(program.action(rank, k) for k in range(len(stream))) == stream


@given(pipelines())
def test_the_order_respects_streams_and_transfers(pipeline: Pipeline) -> None:
    program = program_of(*pipeline)
    held_by = holders(*pipeline[:3])
    actions = program.rows.shape[1]
    done: set[str] = set()
    at = [0] * pipeline.pp
    names: list[str] = []
    for number, place in enumerate(program.order.tolist()):
        rank, position = divmod(place, actions)
        assert (rank, position) == (program.ranks[number], at[rank])
        at[rank] += 1
        action = program.action(rank, position)
        step = -1 if action.kind is Kind.F else 1
        before = action.stage + step
        elsewhere = 0 <= before < len(held_by) and held_by[before] != rank
        awaited = program.awaits[number]
        wanted = f"{before}{action.kind}{action.micro_batch}"
        assert (names[awaited - 1] if awaited else None) == (
            wanted if elsewhere else None
        )
        assert not elsewhere or wanted in done
        done.add(str(action))
        names.append(str(action))


@given(pipelines())
def test_first_forwards_and_last_backwards(pipeline: Pipeline) -> None:
    program = program_of(*pipeline)
    actions = program.rows.shape[1]
    for stage in range(pipeline.stages):
        first = program.action(*divmod(int(program.first_forward[stage]), actions))
        last = program.action(*divmod(int(program.last_backward[stage]), actions))
        assert str(first) == f"{stage}F0"
        assert str(last) == f"{stage}B{pipeline.micro_batches - 1}"
