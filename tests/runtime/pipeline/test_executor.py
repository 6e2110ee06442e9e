"""`runtime.pipeline.executor`: against one process, and against PyTorch's own
runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Any
from weakref import ReferenceType, ref

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from costmodel.schedule.action import Action, Kind
from costmodel.schedule.schedules import peak_in_flight
from profiles.errors import ActionFailed
from tests.runtime import pipeline_cases as cases
from tests.runtime.pipeline_cases import Watching
from tests.runtime.ranks import on_ranks
from tests.runtime.small_model import (
    CASES,
    ROWS,
    WIDTH,
    Case,
    Part,
    batch,
    blocks,
    gradients,
    held_parts,
    parts,
    single,
)

EVERY = [
    pytest.param(case, id=f"{case.schedule}-{case.pp}x{case.virtual_stages}")
    for ranks in CASES.values()
    for case in ranks
]
Results = list[dict[str, Any]]


@cache
def results(pp: int) -> list[Results]:
    """Every case of *pp* ranks, run once: by rank, then by case."""
    return on_ranks(pp, cases.run_cases, CASES[pp])


def of(case: Case, way: str) -> Results:
    """What each rank did of *case*."""
    number = CASES[case.pp].index(case)
    return [rank[number][way] for rank in results(case.pp)]


def joined(ranks: Results) -> dict[str, Tensor]:
    """All gradients; what two ranks hold copies of, summed."""
    found: dict[str, Tensor] = {}
    for rank in ranks:
        for name, gradient in rank["gradients"].items():
            found[name] = found[name] + gradient if name in found else gradient
    return found


def error(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Relative L2 distance over all gradients together."""
    assert found.keys() == wanted.keys()
    apart = sum(((found[name] - wanted[name]) ** 2).sum() for name in wanted)
    size = sum((wanted[name] ** 2).sum() for name in wanted)
    return float((torch.as_tensor(apart) / torch.as_tensor(size)).sqrt())


@pytest.mark.parametrize("case", EVERY)
def test_gradients_are_those_of_one_process_and_of_pytorchs_runtime(case: Case) -> None:
    found = joined(of(case, "ours"))
    assert error(found, single(case.micro_batches)[0]) <= 1e-6
    if len(case.holders) == 1:
        assert error(found, joined(of(case, "oracle"))) <= 1e-6


@pytest.mark.parametrize("case", EVERY)
def test_losses_come_unscaled_in_order_from_the_last_stage(case: Case) -> None:
    ranks = of(case, "ours")
    ends = [held_by[-1] for held_by in case.holders]
    others = [rank for number, rank in enumerate(ranks) if number not in ends]
    assert all(rank["losses"] == [] for rank in others)
    losses = [loss for end in ends for loss in ranks[end]["losses"]]
    whole = Part(blocks())
    tokens, targets = (side.split(ROWS) for side in batch(case.micro_batches))
    wanted = [whole(*pair).detach() for pair in zip(tokens, targets, strict=True)]
    torch.testing.assert_close(torch.stack(losses), torch.stack(wanted))
    assert not any(loss.requires_grad for loss in losses)


@pytest.mark.parametrize("case", EVERY)
def test_what_is_executed_is_the_stream(case: Case) -> None:
    for rank, stream in zip(of(case, "ours"), case.streams, strict=True):
        assert cases.parsed(rank["recorded"]) == stream


@pytest.mark.parametrize("case", EVERY)
def test_only_sends_travel_and_each_is_one_boundary(case: Case) -> None:
    sends = (Kind.SEND_F, Kind.SEND_B)
    boundary = {"pp:send": [1, 4 * ROWS * WIDTH]}
    for rank in of(case, "ours"):
        for row in rank["recorded"]:
            sent = Action.parse(row["action"]).kind in sends
            assert row["collectives"] == (boundary if sent else {})


@pytest.mark.parametrize("case", EVERY)
def test_passes_in_flight_are_those_that_memory_is_priced_for(case: Case) -> None:
    for number, rank in enumerate(of(case, "ours")):
        schedule, pp, chunks, batches = case
        most = peak_in_flight(schedule, number, pp, chunks, batches)
        assert rank["in_flight"] == int(most)
        assert rank["left"] == 0


@pytest.mark.parametrize("case", EVERY)
def test_hooks_know_the_last_backward_of_a_stage(case: Case) -> None:
    for stream, rank in zip(case.streams, of(case, "ours"), strict=True):
        ends = [
            f"{what} {action.stage}"
            for action in stream
            if action.kind is Kind.REDUCE_GRAD
            for what in ("last", "reduce")
        ]
        assert rank["called"] == [*ends, "step"]


def test_a_failing_stage_names_its_action_and_the_others_say_where_they_waited() -> (
    None
):
    first, last = on_ranks(2, cases.fail, Case("gpipe", 2, 1, 4))
    assert last == "ActionFailed: 1F1 failed: ValueError: no more of this"
    assert first.startswith("ActionFailed: 0RECV_B0 failed: RuntimeError: ")


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert group is not None
    yield group
    dist.destroy_process_group()


ACCUMULATING = Case("1f1b", 1, 1, 5)


def test_without_a_pipeline_a_step_accumulates(alone: dist.ProcessGroup) -> None:
    done = cases.ours(ACCUMULATING, alone)
    wanted, loss = single(5)
    assert error(done["gradients"], wanted) <= 1e-6
    torch.testing.assert_close(torch.stack(done["losses"]).mean(), loss)
    assert done["in_flight"] == 1


def test_neighbouring_stages_on_one_rank_hand_over(alone: dist.ProcessGroup) -> None:
    names = "0F0 1F0 1B0 0B0 0F1 1F1 0F2 1F2 1B1 1B2 0B1 0B2 0REDUCE_GRAD 0STEP"
    stream = tuple(map(Action.parse, names.split()))
    modules = dict(enumerate(parts(2)))
    case, hooks = Case("1f1b", 1, 1, 3), Watching()
    runner = cases.executor(case, alone, modules, hooks, stream=stream, held_by=(0, 0))
    tokens, targets = batch(3)
    losses = runner.step(tokens.split(ROWS), targets.split(ROWS))
    wanted, loss = single(3)
    assert error(gradients(list(modules.values())), wanted) <= 1e-6
    torch.testing.assert_close(torch.stack(losses).mean(), loss)


def test_a_failure_names_its_action_and_the_next_step_is_whole(
    alone: dist.ProcessGroup,
) -> None:
    (part,) = parts(1)
    modules: dict[int, nn.Module] = {0: cases.Failing(part)}
    runner = cases.executor(ACCUMULATING, alone, modules, Watching())
    tokens, targets = (side.split(ROWS) for side in batch(5))
    with pytest.raises(
        ActionFailed, match=r"^0F1 failed: ValueError: no more"
    ) as caught:
        runner.step(tokens, targets)
    assert caught.value.action == "0F1"
    assert isinstance(caught.value.__cause__, ValueError)
    part.zero_grad()
    runner.step(tokens, targets)
    assert error(gradients([part]), single(5)[0]) <= 1e-6


class Dropped(Watching):
    """Knows whether a stage's output is alive when its backward begins."""

    def __init__(self, outputs: list[ReferenceType[Tensor]]) -> None:
        super().__init__()
        self.outputs = outputs
        self.alive: list[bool] = []

    def backward(
        self, stage: int, kind: Kind, last: bool
    ) -> AbstractContextManager[object]:
        self.alive.append(self.outputs[-1]() is not None)
        return super().backward(stage, kind, last)


class Referring(Part):
    """Keeps weak references to what it returned."""

    def __init__(self, part: Part) -> None:
        super().__init__(dict(part.blocks.named_children()))
        self.outputs: list[ReferenceType[Tensor]] = []

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        made = super().forward(inputs, targets)
        self.outputs.append(ref(made))
        return made


def test_an_output_is_not_kept_for_its_backward(alone: dist.ProcessGroup) -> None:
    (part,) = parts(1)
    module = Referring(part)
    hooks = Dropped(module.outputs)
    runner = cases.executor(ACCUMULATING, alone, {0: module}, hooks)
    tokens, targets = batch(5)
    runner.step(tokens.split(ROWS), targets.split(ROWS))
    assert hooks.alive == [False] * 5
    assert error(gradients([module]), single(5)[0]) <= 1e-6


def test_each_action_is_told_before_it_begins(alone: dist.ProcessGroup) -> None:
    modules = held_parts(ACCUMULATING, 0)
    runner = cases.executor(ACCUMULATING, alone, modules, Watching())
    told: list[Action] = []
    runner.watch = told.append
    tokens, targets = batch(5)
    runner.step(tokens.split(ROWS), targets.split(ROWS))
    assert tuple(told) == ACCUMULATING.streams[0]
