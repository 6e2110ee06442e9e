"""Pipelines and what their stages cost, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from costmodel.schedule.schedules import FLUSHED, SCHEDULES
from costmodel.timeline.costs import FloatArray, StageCosts

WHOLE = ("gpipe", "1f1b", "interleaved")  # one copy, backwards that are not split
BY_RANK = ("step_s", "gather_s")
BY_STAGE = (
    "forward_s",
    "backward_s",
    "send_forward_s",
    "send_backward_s",
    "saved_bytes",
    "transient_forward_bytes",
    "transient_backward_bytes",
    "reduce_s",
    "weight_s",
    "weight_bytes",
    "hidden_s",
)


class Pipeline(NamedTuple):
    """What `simulate` and its like take before the costs."""

    schedule: str
    pp: int
    virtual_stages: int
    micro_batches: int

    @property
    def stages(self) -> int:
        return self.pp * self.virtual_stages


@st.composite
def pipelines(
    draw: st.DrawFn,
    max_pp: int = 6,
    max_batches: int = 9,
    names: Sequence[str] = FLUSHED,
) -> Pipeline:
    """Every schedule (of *names*), with numbers that it allows; one without a flush is
    not what it is on one rank."""
    schedule = draw(st.sampled_from(names))
    chunks = SCHEDULES[schedule].chunks
    if schedule == "chimera":
        pp, m = (
            draw(st.integers(1, max_pp // 2)),
            draw(st.integers(1, max_batches // 2)),
        )
        return Pipeline(schedule, 2 * pp, 1, 2 * m)
    if SCHEDULES[schedule].stale is not None:
        pp = draw(st.integers(2, max_pp))
        least = pp if schedule == "2bw" else 1
        return Pipeline(schedule, pp, 1, draw(st.integers(least, least + max_batches)))
    if chunks == 1:
        pp, m = draw(st.integers(1, max_pp)), draw(st.integers(1, max_batches))
        return Pipeline(schedule, pp, 1, m)
    pp = draw(st.integers(2, max_pp))
    if chunks == 2:
        least = 2 * pp if schedule == "dualpipe-v" else 1
        m = draw(st.integers(least, max(max_batches, least + 3)))
        return Pipeline(schedule, pp, 2, m)
    v = draw(st.integers(2, 4))
    rounds = draw(st.integers(1, max(max_batches // pp, 1)))
    return Pipeline(schedule, pp, v, pp * rounds)


def values(length: int, most: float = 4.0) -> st.SearchStrategy[FloatArray]:
    """Seconds, or bytes: often 0, often equal."""
    few = st.sampled_from([0.0, 0.25, 1.0, most])
    return arrays(np.float64, length, elements=few | st.floats(0, most))


@st.composite
def costs_of(draw: st.DrawFn, pipeline: Pipeline, *, turns: float = 1.0) -> StageCosts:
    """Any costs of *pipeline*, slow links and all; of ranks that take *turns*."""
    by_stage, by_rank = values(pipeline.stages), values(pipeline.pp)
    backward_s, share = draw(by_stage), draw(st.sampled_from([0.0, 0.4, 1.0]))
    return StageCosts(
        forward_s=draw(by_stage),
        backward_s=backward_s,
        weight_s=draw(st.sampled_from([0, share])) * backward_s,
        hidden_s=draw(st.sampled_from([0, share])) * backward_s / 2,
        weight_bytes=draw(by_stage),
        send_forward_s=draw(by_stage),
        send_backward_s=draw(by_stage),
        saved_bytes=draw(by_stage),
        transient_forward_bytes=draw(by_stage),
        transient_backward_bytes=draw(by_stage),
        reduce_s=draw(by_stage),
        step_s=draw(by_rank),
        gather_s=draw(by_rank),
        buckets=draw(st.integers(1, 5)),
        overlap_reduce=turns == 1.0 and draw(st.booleans()),
        turns=turns,
        messages=draw(st.sampled_from([0.0, 0.3, 1.0])) if turns > 1 else 0.0,
    )


def plain_costs(pipeline: Pipeline, **given: Any) -> StageCosts:
    """Forwards of 1 s, backwards of 2 s, one saved byte, all else free, but *given*.

    A number stands for all stages (or ranks).
    """
    numbers = {"forward_s": 1.0, "backward_s": 2.0, "saved_bytes": 1.0, **given}
    lengths = dict.fromkeys(BY_STAGE, pipeline.stages)
    lengths |= dict.fromkeys(BY_RANK, pipeline.pp)
    filled = {
        name: np.broadcast_to(np.asarray(numbers.pop(name, 0.0)), length)
        for name, length in lengths.items()
    }
    return StageCosts(**{**filled, **numbers})
