"""Planning's habits of memory: undone where they can be, harmless where they cannot."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

import pytest

from profiles.system.allocator import fewer_collections, keep_heap


def test_cycles_are_looked_for_as_before_afterwards() -> None:
    usual = gc.get_threshold()
    with suppress(ValueError), fewer_collections():
        assert gc.get_threshold()[0] > 10 * usual[0]
        raise ValueError("whatever happens")
    assert gc.get_threshold() == usual


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert keep_heap() is False
