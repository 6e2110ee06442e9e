"""The tree finds the pipeline that takes least, as trying them all does."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.heterogeneous import stage_tree
from planner.heterogeneous.bound import StagesHeld
from planner.heterogeneous.candidates import Option
from planner.heterogeneous.partition import Part
from planner.heterogeneous.stage_costs import Passes
from planner.heterogeneous.stage_runs import ends_s
from planner.heterogeneous.stage_tree import Tree
from tests.support.stage_menus import (
    at_home,
    everything,
    late_s,
    passes_of,
    reductions,
    two_islands,
)

SHARE = 0.4  # of a stage's seconds that are forward


def run_s(
    parts: tuple[Part, ...], options: list[Option], passes: list[Passes], m: int
) -> float:
    """When the last stage of *parts* has reduced its gradients; infinite where one
    cannot fit."""
    chosen = [options[one.option] for one in parts]
    for place, (one, option) in enumerate(zip(parts, chosen, strict=True)):
        held = option.stages_bytes(min(len(parts) - place, m))
        if held[one.first, one.last] > option.capacity_bytes:
            return inf
    seconds = np.array(
        [
            option.seconds[one.first : one.last + 1].sum()
            for one, option in zip(parts, chosen, strict=True)
        ]
    )
    ways = [
        max(one.ways.sent_s, two.ways.sent_s)
        if one.span == two.span
        else max(one.ways.crossed_s, two.ways.arrived_s)
        for one, two in pairwise(chosen)
    ]
    ends = ends_s(
        SHARE * seconds[None], (1 - SHARE) * seconds[None], np.array([ways]), m
    )
    late = [late_s(one, passes[one.option]) for one in parts]
    return float(np.max(ends[0] + late))


def tree_of(
    options: list[Option], passes: list[Passes], devices: int, m: int
) -> Tree | None:
    held = StagesHeld(options, passes, devices=devices, micro_batches=m)
    return None if held.is_empty else Tree(held=held)


@settings(deadline=None, max_examples=100)
@given(
    menu=two_islands(),
    reduced=reductions,
    m=st.integers(1, 6),
    room=st.sampled_from([inf, 12.0, 20.0]),
    width=st.sampled_from([1, 3, 10_000]),
    at_a_time=st.sampled_from([1, 1_024]),
)
def test_nothing_is_below_and_the_best_is_found(
    menu: tuple[list[Option], int],
    reduced: list[float],
    m: int,
    room: float,
    width: int,
    at_a_time: int,
) -> None:
    options, devices = menu
    passes = [
        passes_of(one, SHARE, by) for one, by in zip(options, reduced, strict=False)
    ]
    options = [replace(one, capacity_bytes=room) for one in options]
    tree = tree_of(options, passes, devices, m)
    assume(tree is not None)
    assert tree is not None
    cuts = everything(options, 0, devices)
    legal = [parts for parts in cuts if at_home(options, parts, devices)]
    least = min((run_s(parts, options, passes, m) for parts in legal), default=inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_tree, "GROWN", at_a_time)
        patch.setattr(stage_tree, "AT_ONCE", at_a_time)
        found = tree.grown(1000.0, width=width)
    assert found.lower_s <= min(least, 1000.0) * (1 + 1e-9)
    if not found.best:
        assert width < 10_000 or least >= 1000.0
        return
    kinds = [(one.devices, one.span) for one in options]
    if len(set(kinds)) == len(kinds):  # none is merged with another
        assert found.best[0].seconds >= least * (1 - 1e-9)
        if width == 10_000:
            assert found.best[0].seconds == pytest.approx(least)
            assert found.lower_s == pytest.approx(least)


def test_so_many_stages_may_be_asked_for() -> None:
    one = Option(
        devices=1,
        seconds=np.ones(6),
        saved_bytes=np.zeros(6),
        state_bytes=np.zeros(6),
        working_bytes=np.zeros(6),
        span=(0, 3),
    )
    tree = tree_of([one, replace(one, devices=3)], [passes_of(one)] * 2, 3, 4)
    assert tree is not None
    (three,) = tree.grown(100.0, width=100, stages=3).best
    assert three.firsts == (0, 2, 4)
    assert three.seconds == pytest.approx(12.0)
    (alone,) = tree.grown(100.0, width=100, stages=1).best
    assert alone.firsts == (0,)
    assert alone.seconds == pytest.approx(24.0)
    assert not tree.grown(100.0, width=100, stages=2).best
