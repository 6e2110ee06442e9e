"""Step times of published runs under any coefficients, quickly and again and again.

What does not hang on coefficients (cells, jobs, layouts) is read once; a run's time
under other coefficients is its stages priced anew and its schedule simulated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel.layout.layout import Layout
from costmodel.machine.assembly import Machine
from costmodel.machine.coefficients import Coefficients
from costmodel.runs.pricing import ask_runs
from costmodel.runs.table import Run, read_runs
from costmodel.simulation.estimator import Accounts
from costmodel.stages.layout_cost import LayoutPricer, price_together
from costmodel.timeline import simulate
from profiles.errors import MeshwrightError
from profiles.models.job import Job
from profiles.samples import SIXTEEN_BITS

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A run that tells a step time, ready to be priced."""

    run: Run
    measured_s: float
    job: Job
    layout: Layout
    machine: Machine

    @property
    def rounded(self) -> bool:
        """Whether the time was inverted from a rounded figure: it does not count."""
        return self.run.measured.get("step_time_origin") == "derived_from_tflops"

    def of(self, column: str) -> str:
        return self.run.cell(column)


def timed_runs(path: Path) -> list[Timed]:
    """The runs of a table that tell a step time and can be priced."""
    return [
        Timed(
            run=item.run,
            measured_s=float(item.run.measured["step_time_s"]),
            job=item.question.job,
            layout=item.layout,
            machine=item.question.machine,
        )
        for item in ask_runs(run for run in read_runs(path) if counts(run))
        if item.question is not None
        and item.layout is not None
        # Unlike islands: their tables do not say how the layers are split.
        and len(item.question.machine.cluster.islands) == 1
    ]


def counts(run: Run) -> bool:
    """Whether a run tells a step time: as `costmodel.runs.validate` has it, and those
    that
    were inverted from a rounded TFLOP/s figure."""
    asked, measured = run.asked, run.measured
    return bool(
        measured.get("step_time_s")
        and float(measured["step_time_s"]) > 0
        and asked.get("task", "pretrain") in ("pretrain", "sft")
        and asked.get("kind", "dense") in ("dense", "moe")
        and asked.get("offload", "none") == "none"
        and "tp" in asked
        and "pp" in asked
    )


def seconds(runs: Sequence[Timed], fitted: Sequence[Coefficients]) -> Floats:
    """Of each run, under the coefficients beside it; NaN where it has no price."""
    machines: dict[tuple[int, int], Machine] = {}
    pricers: dict[object, LayoutPricer] = {}
    keys = []
    for item, values in zip(runs, fitted, strict=True):
        place = (id(item.machine), id(values))
        if place not in machines:
            machines[place] = item.machine.fitted_as(values)
        keys.append((place, id(item.layout)))
        if keys[-1] not in pricers:
            on = machines[place].running(item.layout.gpus)
            pricers[keys[-1]] = LayoutPricer(
                job=item.job, layout=item.layout, machine=on
            )
    price_together(pricers.values())
    known = dict(zip(pricers, map(_makespan_s, pricers.values()), strict=True))
    return np.array([known[key] for key in keys])


def _makespan_s(pricer: LayoutPricer) -> float:
    """As `estimate` has it, without its bytes."""
    job, layout, on = pricer.job, pricer.layout, pricer.machine
    try:
        accounts = Accounts(job=job, layout=layout, stages=pricer.columns(), on=on)
        return simulate(
            layout.schedule,
            layout.pp,
            layout.virtual_stages,
            layout.micro_batches,
            accounts.costs(),
        ).makespan_s
    except MeshwrightError:
        return math.nan


def asked_by(runs: Sequence[Timed], fitted: Coefficients) -> list[frozenset[str]]:
    """Which coefficients each run's machine is made of and its layout can use."""
    known: dict[int, frozenset[str]] = {}
    for item in runs:
        if id(item.machine) not in known:
            known[id(item.machine)] = item.machine.fitted_as(fitted).names
    return [
        frozenset(name for name in known[id(item.machine)] if _can_use(name, item))
        for item in runs
    ]


def _can_use(name: str, item: Timed) -> bool:
    """Whether a coefficient can move a run that its machine is made of."""
    quantity, _, _ = name.partition("/")
    layout, number = item.layout, item.layout.precision.matmul
    meshes = [stage.mesh for stage in layout.stages]
    if quantity in ("together", "exposed_tensor"):
        return any(mesh.tp > 1 for mesh in meshes)
    if quantity == "reduction":
        return any(mesh.dp * mesh.cp > 1 for mesh in meshes)
    if quantity in ("scores", "attention"):
        return layout.flash_attention == (quantity == "attention")
    if "expert" in quantity:
        return item.run.asked.get("kind") == "moe"
    if quantity == "quantise":
        return number.bytes < SIXTEEN_BITS
    return not quantity.startswith("product-") or quantity.endswith(number.value)


def by(runs: Sequence[Timed], column: str) -> Mapping[str, list[int]]:
    """The rows of each value of *column*."""
    parts: dict[str, list[int]] = {}
    for row, item in enumerate(runs):
        parts.setdefault(item.of(column), []).append(row)
    return parts
