"""Small menus of stages, and all ways to cut layers over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np
from hypothesis import strategies as st

from costmodel.timeline.timeline import simulate
from planner.heterogeneous.candidates import Option, Stages, Ways
from planner.heterogeneous.partition import Part
from tests.support.pipelines import Pipeline, plain_costs


def option(devices: int, seconds: Sequence[float], saved: Sequence[float]) -> Option:
    one = Option(
        devices=devices,
        seconds=np.array(seconds, dtype=float),
        least_s=np.zeros((5, len(seconds))),
        saved_bytes=np.array(saved, dtype=float),
        state_bytes=np.full(len(seconds), 2.0 / devices),
        working_bytes=np.array(saved, dtype=float) / 2,
        base_bytes=1.0,
    )
    return timed(one)


def timed(
    one: Option, share: float = 0.5, reduced: float = 0.0, stepped: float = 0.0
) -> Option:
    """With what its seconds are: *share* of them forward; a reduction of so many times,
    and a step of so many."""
    shares = np.array([share, 1 - share, reduced, stepped, 0.0])
    return replace(one, least_s=shares[:, None] * one.seconds)


def stages_of(options: list[Option], devices: int, micro_batches: int) -> Stages:
    return Stages(options, devices=devices, micro_batches=micro_batches)


@st.composite
def menus(draw: st.DrawFn) -> tuple[list[Option], int]:
    """Options of 1, 2 and 4 devices for some layers, and how many devices there are."""
    layers = draw(st.integers(1, 6))
    numbers = st.lists(st.integers(1, 9), min_size=layers, max_size=layers)
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
    return [option(size, draw(numbers), draw(numbers)) for size in sizes], draw(
        st.integers(1, 8)
    )


@st.composite
def two_islands(draw: st.DrawFn) -> tuple[list[Option], int]:
    """The same, at home on one of two islands: what is sent takes some time, that of
    one size and island alike."""
    options, devices = draw(menus())
    border = draw(st.integers(0, devices))
    three = st.tuples(*[st.integers(0, 9).map(float)] * 3)
    seconds = {
        (size, place): draw(three)
        for size in sorted({one.devices for one in options})
        for place in (0, 1)
    }
    placed = []
    for one in options:
        place = draw(st.sampled_from((0, 1)))
        sent_s, crossed_s, arrived_s = seconds[one.devices, place]
        span = ((0, border), (border, devices))[place]
        placed.append(
            replace(
                one,
                span=span,
                ways=Ways(sent_s=sent_s, crossed_s=crossed_s, arrived_s=arrived_s),
                starts=draw(st.booleans()),
                ends=draw(st.booleans()),
            )
        )
    return placed, devices


reductions = st.lists(st.sampled_from([0.0, 0.4, 1.0, 5.0]), min_size=4, max_size=4)


def run_s(parts: Sequence[Part], options: Sequence[Option], m: int) -> float:
    """What 1F1B takes of *parts*, with what reductions are late and the longest step;
    infinite where a stage does not fit."""
    chosen = [options[one.option] for one in parts]
    for behind, one, each in zip(range(len(parts), 0, -1), parts, chosen, strict=True):
        held = each.stages_bytes(min(behind, m))
        if held[one.first, one.last] > each.capacity_bytes:
            return inf
    forward_s, backward_s, reduce_s, step_s, _ = np.array(
        [
            each.stages_s()[:, one.first, one.last]
            for one, each in zip(parts, chosen, strict=True)
        ]
    ).T
    half_s = np.array(
        [
            here.ways.sent_s
            if here.span == there.span
            else max(here.ways.crossed_s, there.ways.arrived_s)
            for here, there in pairwise(chosen)
        ]
    )
    half_s = half_s / 2
    costs = plain_costs(
        Pipeline("1f1b", len(parts), 1, m),
        forward_s=forward_s,
        backward_s=backward_s,
        send_forward_s=np.append(half_s, 0.0),
        send_backward_s=np.append(0.0, half_s),
    )
    run = simulate("1f1b", len(parts), 1, m, costs=costs)
    late_s = np.maximum(reduce_s - backward_s, 0.0)
    return float(np.max(run.compute_end_s + late_s) + step_s.max())


def at_home(options: Sequence[Option], parts: Sequence[Part], devices: int) -> bool:
    """Whether each stage lies where its option may, and so do the model's ends."""
    first = 0
    for part in parts:
        one = options[part.option]
        low, high = one.span or (0, devices)
        if not low <= first <= first + one.devices <= high:
            return False
        first += one.devices
    ends = options[parts[-1].option].ends if parts else False
    return ends and options[parts[0].option].starts


def everything(
    options: Sequence[Option], first: int, left: int
) -> Iterator[tuple[Part, ...]]:
    """All ways to put the layers from *first* on *left* devices."""
    layers = len(options[0].seconds)
    if first == layers:
        if left == 0:
            yield ()
        return
    for last in range(first, layers):
        for number, one in enumerate(options):
            if one.devices <= left:
                part = Part(first=first, last=last, option=number)
                for rest in everything(options, last + 1, left - one.devices):
                    yield (part, *rest)
