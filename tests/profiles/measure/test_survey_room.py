"""What a GPU has no room for is left out of a profile."""

from __future__ import annotations

import pytest
import torch

from profiles.measure.survey import Operated
from profiles.measure.timing import Clock, Kernels, Operation
from tests.profiles.measure.timing.test_clock import Alone

OPERATIONS = [Operation(kind="gelu", direction="forward", shape=(16, 32))]


class Full(Kernels):
    """Kernels of a device that runs out of memory when they are made."""

    def kernel(self, operation: Operation) -> object:  # type: ignore[override]
        raise torch.OutOfMemoryError(f"no room for {operation.kind}")


def test_an_operator_without_room_has_no_timing() -> None:
    clock = Clock(Alone(), "cpu", own=False, budget_s=10.0)
    one = Operated(OPERATIONS, Full("cpu", 1e6, 1e5))
    one.visit(clock)
    assert not list(one.timings())
    assert not one.wants(30)


def test_others_have_one() -> None:
    clock = Clock(Alone(), "cpu", own=False, budget_s=10.0)
    one = Operated(OPERATIONS, Kernels("cpu", 1e6, 1e5))
    one.visit(clock)
    assert [operation for operation, _ in one.timings()] == OPERATIONS


def test_what_is_larger_than_an_arena_is_no_zeros() -> None:
    arena = Kernels("cpu", 4096.0, 1e3).arena()
    dealt = arena.deal(64, 64)
    assert dealt.shape == (64, 64)
    assert bool((dealt != 0).all())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_both_devices_have_a_calibration_product(device: str) -> None:
    from profiles.measure.machine import SIZES

    assert all(size > 0 for size in SIZES[device])
