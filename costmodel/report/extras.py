"""`Beside`: what the questions around a layout's price add to what is shown of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from costmodel.machine import Machine
from costmodel.report.batch_ramp import BatchRamp, ramped
from costmodel.report.data_parallel_baseline import compare_data_parallel
from costmodel.report.tables import compared_rows, training_rows
from costmodel.report.training_run import training
from costmodel.simulation import Estimate

Rows = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Members of the JSON document, and rows that stand below the price."""

    members: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Rows, ...] = ()

    def __add__(self, other: Beside) -> Beside:
        return Beside(
            members={**self.members, **other.members}, rows=self.rows + other.rows
        )


def beside(
    found: Estimate,
    on: Machine,
    *,
    tokens: float | None,
    rampup: tuple[int, int, int] | None,
    compares: bool,
) -> Beside:
    """A run of *tokens* tokens, its batch ramped up or not; and, where it *compares*,
    data parallelism in one process."""
    more = Beside()
    if tokens is not None:
        run = None
        if rampup is not None:
            start, increment, samples = rampup
            ramp = BatchRamp(start=start, increment=increment, samples=samples)
            run = ramped(found, on, ramp, tokens)
        whole = training(found, tokens, run)
        more += Beside(members={"training": whole}, rows=(training_rows(whole),))
    if compares:
        compared = compare_data_parallel(found, on)
        more += Beside(
            members={"data_parallel": compared.document()},
            rows=(compared_rows(compared),),
        )
    return more
