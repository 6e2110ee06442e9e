"""Menus of a layer's options, small numbers, for tests of what fits."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from costmodel.layout.retention import recompute
from costmodel.simulation.remat_options import Option


@st.composite
def menus(draw: st.DrawFn) -> tuple[Option, ...]:
    size = draw(st.integers(1, 4))
    numbers = st.integers(1, 20)
    steps = [(draw(numbers), draw(numbers)) for _ in range(size - 1)]
    held, seconds = sum(step for _, step in steps) + draw(numbers), 0
    working = draw(numbers)
    found = []
    for level in range(size):
        found.append(
            Option(
                retention=recompute(*(f"t{one}" for one in range(level))),
                recompute_s=seconds,
                saved_bytes=held,
                working_bytes=working,
            )
        )
        if level < size - 1:
            more, less = steps[level]
            seconds, held, working = seconds + more, held - less, working + less
    return tuple(found)


@st.composite
def joining_menus(draw: st.DrawFn) -> tuple[Option, ...]:
    """Menus whose leanest option may be joined."""
    single = draw(menus())
    last = single[-1]
    joined = replace(
        last,
        inside=recompute("*"),
        inside_s=last.recompute_s + draw(st.integers(0, 2)),
        inside_bytes=draw(st.integers(0, 10)),
    )
    return (*single, replace(joined, joined=2), replace(joined, joined=3))
