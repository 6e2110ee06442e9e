"""A micro-batch through a stage's layers as a trace for `costmodel.simulation.dtr`.

Operators in order, each layer's as they are priced; then their backwards, latest first:
of the gradient that came and what the operator saves. A gradient is as large as what it
is of. Embedding, head and what operators keep of their own making stay out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from costmodel.layout import Stage
from costmodel.machine import Machine
from costmodel.operators import OperatorPrice
from costmodel.simulation.dtr import Run, Step, compared, run
from costmodel.simulation.estimator import Estimate
from costmodel.simulation.remat_auto import degrees_in
from costmodel.stages import block_prices
from profiles.arrays import Array
from profiles.models import Block, Job, Operator
from profiles.units import format_bytes

ENTRY: Final = "layer_in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Each heuristic's run within a share of the bytes that all tensors take."""

    share: float
    budget_bytes: float
    forward_backward_s: float
    runs: dict[str, Run | None]

    def document(self) -> dict[str, Any]:
        return {
            "share": self.share,
            "budget_bytes": self.budget_bytes,
            "forward_backward_s": self.forward_backward_s,
            "overhead": {
                name: None if one is None else one.overhead
                for name, one in self.runs.items()
            },
        }


def rematerialized(found: Estimate, on: Machine, share: float) -> Compared:
    """One micro-batch of the first stage of an estimate, within *share* of the bytes
    that it keeps without a budget."""
    stage = found.layout.stages[0]
    steps = stage_steps(found, stage, found.job, on.running(found.layout.gpus))
    free = run(steps, np.inf, "lru")
    budget = share * free.peak
    return Compared(
        share=share,
        budget_bytes=budget,
        forward_backward_s=free.cost,
        runs=dict(compared(steps, budget)),
    )


def stage_steps(found: Estimate, stage: Stage, job: Job, on: Machine) -> list[Step]:
    """Of the numbered layers of *stage*."""
    known: dict[str, dict[str, OperatorPrice]] = {}
    blocks = []
    for name, plan in zip(stage.layers, stage.plans, strict=True):
        if not name.isdigit():
            continue
        block = job.graph.layer_blocks[name]
        if block.name not in known:
            degrees = degrees_in(found.layout, stage, plan, job, on)
            precision = found.layout.precision
            known[block.name] = block_prices(block, degrees, precision, on)
        blocks.append((block, known[block.name]))
    return _freed(list(_steps(blocks)))


def _steps(
    blocks: Sequence[tuple[Block, dict[str, OperatorPrice]]],
) -> Iterator[Step]:
    """Without what dies when."""
    made: list[tuple[Operator, OperatorPrice, tuple[int, ...], tuple[int, ...]]] = []
    last: int | None = None
    for block, prices in blocks:
        of_name: dict[str, int] = {} if last is None else {ENTRY: last}
        for operator in block.operators:
            price = prices[operator.name]
            reads = _numbers(of_name, [one.name for one in operator.inputs])
            last = of_name[operator.output.name] = len(made)
            kept = _numbers(of_name, [one.name for one in operator.saves])
            made.append((operator, price, reads, kept))
            yield Step(
                inputs=reads,
                cost=_seconds(price.forward.device_s),
                size=_seconds(price.output_bytes),
            )
    gradient: int | None = None
    for number, (_, price, _, kept) in reversed(list(enumerate(made))):
        before = () if gradient is None else (gradient,)
        gradient = 2 * len(made) - 1 - number
        yield Step(
            inputs=(*before, *kept),
            cost=_seconds(price.backward.device_s),
            size=_seconds(price.output_bytes),
        )


def _numbers(of_name: dict[str, int], names: Sequence[str]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(of_name[name] for name in names if name in of_name))


def _freed(steps: list[Step]) -> list[Step]:
    """The same with each tensor freed by its last reader."""
    readers = {one: number for number, step in enumerate(steps) for one in step.inputs}
    frees: dict[int, list[int]] = {}
    for one, number in readers.items():
        frees.setdefault(number, []).append(one)
    return [
        replace(step, frees=tuple(frees.get(number, ())))
        for number, step in enumerate(steps)
    ]


def _seconds(value: Array) -> float:
    return float(np.asarray(value).reshape(-1)[0])


def dtr_rows(found: Compared) -> Iterator[tuple[str, str]]:
    """What `rematerialized` found, as names and what they say."""
    whole = format_bytes(found.budget_bytes / found.share)
    words = f"the first stage's layers, a micro-batch, in {found.share:.0%} of {whole}"
    yield "dynamic rematerialization", words
    for name, one in found.runs.items():
        words = "one operator does not fit" if one is None else f"{one.overhead:.3f} ×"
        yield name, words
