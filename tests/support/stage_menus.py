"""Small menus of stages, and all ways to cut layers over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from planner.heterogeneous.candidates import Option, Ways
from planner.heterogeneous.partition import Part
from planner.heterogeneous.stage_costs import Passes


def option(devices: int, seconds: Sequence[float], saved: Sequence[float]) -> Option:
    return Option(
        devices=devices,
        seconds=np.array(seconds, dtype=float),
        saved_bytes=np.array(saved, dtype=float),
        state_bytes=np.full(len(seconds), 2.0 / devices),
        working_bytes=np.array(saved, dtype=float) / 2,
        base_bytes=1.0,
    )


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


def passes_of(
    one: Option, share: float = 0.5, reduced: float = 0.0, stepped: float = 0.0
) -> Passes:
    """What its seconds are, *share* of them forward; a reduction of so many times, and
    an update of so many, half of it what nothing hides of the gathering."""
    return Passes(
        forward_s=share * one.seconds,
        backward_s=(1 - share) * one.seconds,
        reduce_s=reduced * one.seconds,
        step_s=stepped / 2 * one.seconds,
        gather_s=stepped / 2 * one.seconds,
        messages=np.ones_like(one.seconds),
    )


reductions = st.lists(st.sampled_from([0.0, 0.4, 1.0, 5.0]), min_size=4, max_size=4)


def late_s(part: Part, passes: Passes) -> float:
    """What the reduction of a stage takes longer than its last backward."""
    here = slice(part.first, part.last + 1)
    reduce_s = float(passes.reduce_s[here].sum())
    return max(0.0, reduce_s - float(passes.backward_s[here].sum()))


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
