"""Small planning problems, for tests."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import frameworks
from costmodel.options.pins import Pins
from costmodel.schedule.schedules import FLUSHED, SCHEDULES
from costmodel.simulation.question import default_precision, flash_default
from planner.problem.problem import Objective, Problem
from planner.problem.space import Space
from planner.problem.table import length
from planner.search.bounds import leaf_bounds
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job

MOST_CANDIDATES = 160


@cache
def on(name: str = "dgx-a100-80gb", framework: str = "meshwright") -> Machine:
    return machine(cluster(name), frameworks()[framework])


@cache
def local(name: str = "cpu") -> Machine:
    """The machine that a profile was taken on, with the devices of cluster *name*."""
    return machine(replace(cluster(name), name="local"))


def problem(
    name: str = "gpt-tiny",
    gpus: int = 4,
    *,
    global_batch: int = 8,
    where: Machine | None = None,
    limit_bytes: float | None = None,
    objective: Objective = Objective.THROUGHPUT,
    pins: Pins | None = None,
    executable: bool = False,
    allow_async: bool = False,
) -> Problem:
    """A problem of a catalogue model, everything else searched."""
    found, used = model(name), where or on()
    return Problem(
        job=Job(
            model=name,
            spec=found.spec,
            seq_len=found.seq_len,
            global_batch=global_batch,
        ),
        machine=used,
        gpus=gpus,
        pins=pins or Pins(),
        precision=default_precision(used.cluster),
        gradient_format="fp32",
        flash_attention=flash_default(used.cluster),
        memory_limit_bytes=limit_bytes or used.device.capacity_bytes,
        objective=objective,
        executable=executable,
        allow_async=allow_async,
    )


@st.composite
def all_pins(draw: st.DrawFn, gpus: int = 8) -> Pins:
    """Pins of any kind, of degrees that divide *gpus*; most are left out."""

    def maybe(*values: Any) -> st.SearchStrategy[Any]:
        left_out = (None,) * 2 * len(values)  # most pins together leave no layout
        return st.sampled_from((*left_out, *values))

    def degree(*values: int) -> int | None:
        left = gpus // math.prod(taken)
        divide = (value for value in values if left % value == 0)
        found: int | None = draw(maybe(*divide))
        taken.append(found or 1)
        return found

    taken: list[int] = []
    segments = draw(st.sampled_from(((), ("sqrt",))))  # not of the first layers alone
    return Pins(
        tp=degree(1, 2),
        pp=degree(1, 2),
        dp=degree(1, 2, 4),
        cp=degree(1, 2),
        micro_batch=draw(maybe(1, 2)),
        schedule=draw(maybe(*FLUSHED)),
        zero=draw(maybe(0, 1, 2, 3)),
        zero_group=draw(maybe(1, 2)),
        sequence_parallel=draw(maybe(True, False)),
        cp_kind=draw(maybe("ring", "ulysses")),
        recompute=draw(maybe("none", "selective", "full", *segments)),
        recompute_layers=None if segments else draw(maybe(1)),
    )


@st.composite
def small_problems(draw: st.DrawFn) -> Problem:
    """Problems that can be searched exhaustively; in some of them memory binds."""
    clusters = st.sampled_from(("dgx-a100-80gb", "p3.16xlarge", "cpu"))
    frameworks = st.sampled_from(("meshwright", "megatron-lm", "fsdp2"))
    gpus = draw(st.sampled_from((1, 2, 3, 4, 6, 8)))
    posed = problem(
        draw(st.sampled_from(("gpt-tiny", "gpt-mini"))),
        gpus,
        global_batch=draw(st.sampled_from((4, 6, 8, 12))),
        where=on(draw(clusters), draw(frameworks)),
        objective=draw(st.sampled_from((Objective.THROUGHPUT, Objective.MEMORY))),
        pins=draw(all_pins(gpus)),
        allow_async=draw(st.booleans()),
    )
    if posed.allow_async and posed.pins.schedule is not None and gpus > 1:
        stale = tuple(name for name in SCHEDULES if name not in FLUSHED)
        posed = replace(
            posed, pins=replace(posed.pins, schedule=draw(st.sampled_from(stale)))
        )
    space = Space(problem=posed)
    assume(0 < space.trunks["leaves"].sum() <= MOST_CANDIDATES)
    if draw(st.booleans()):
        peaks = leaf_bounds(posed, space.leaves(space.branches)).needed_bytes
        share = draw(st.sampled_from((0.0, 0.2, 0.6)))
        limit = float(np.quantile(peaks, share))
        posed = replace(posed, memory_limit_bytes=limit)
    assert length(space.branches)
    return posed
