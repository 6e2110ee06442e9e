"""`profiles.measure.timing.fsdp_unit`: what `fully_shard` does, without what it
communicates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from profiles.measure.plan import of_units
from profiles.measure.timing.clock import Clock
from profiles.measure.timing.fsdp_unit import UNITS, Unit, _Silent
from profiles.measure.timing.operands import Arena
from profiles.measure.timing.tasks import FORWARD, Operation
from profiles.samples.operator_keys import UNIT_KINDS
from tests.support.small_jobs import GPT, LLAMA, MIXTURE, job

SIZES = (64, 8)
RANKS = 2


class Alone:
    def barrier(self) -> None:
        pass

    def largest(self, *values: float) -> tuple[float, ...]:
        return values


@pytest.fixture(autouse=True)
def ranks() -> Iterator[None]:
    """The first of two ranks, which say nothing to each other."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Elements of every buffer that would have been gathered into or scattered to."""
    found: list[int] = []

    def silent(self: _Silent, *tensors: Any, **named: Any) -> None:
        found.append(
            max(
                one.numel()
                for one in (*tensors, *named.values())
                if isinstance(one, torch.Tensor)
            )
        )

    monkeypatch.setattr(_Silent, "__call__", silent)
    return found


def unit(kind: str) -> Unit:
    arena = Arena(2**20, torch.float32, torch.device("cpu"))
    size = (sum(SIZES),)
    return Unit(
        Operation(kind=kind, direction=FORWARD, shape=size, pieces=SIZES), arena
    )


@pytest.mark.parametrize(
    ("kind", "messages"), [("unit-pass", 0), ("unit-reduce", 1), ("unit-gather", 1)]
)
def test_a_unit_would_send_what_its_kind_says(
    kind: str, messages: int, said: list[int]
) -> None:
    known = unit(kind)
    said.clear()
    known.work()
    assert said == [sum(SIZES)] * UNITS * messages


@pytest.mark.parametrize("kind", UNIT_KINDS)
def test_what_lies_between_does_not_count(kind: str) -> None:
    clock = Clock(Alone(), "cpu", own=True, budget_s=60.0)
    known = unit(kind)
    known.visit(clock, 1)
    (seconds,) = known.visit(clock, 1).values()
    assert 0 < seconds * UNITS < 10 * known.pause.seconds
    assert known.pause.seconds > 0


@pytest.mark.parametrize("spec", [GPT, LLAMA, MIXTURE], ids="glm")
def test_units_are_numbered_layers_and_parts_of_them(spec: Any) -> None:
    plan = list(of_units(job(spec), (1, 2)))
    graph = job(spec).graph
    assert len(plan) == 2 * len(UNIT_KINDS) * len({one.name for one, _ in graph.runs})
    assert all((sum(one.pieces),) == one.shape for one in plan)
