"""`Rows`: the stages of every row of columns, priced: first, middle and last ones."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.closed_form import Kinds, stage_kinds
from costmodel.columns import Columns
from costmodel.data_parallel import DataParallel
from costmodel.gather import Gather
from costmodel.machine import Machine
from costmodel.stage import StagePrice, stage_price
from profiles.job import Job
from profiles.precision import Precision, precision

Array = NDArray[Any]


@dataclass(kw_only=True)
class Rows:
    """Candidates with what all their prices share, each part made when first asked."""

    columns: Columns
    job: Job
    on: Machine

    @cached_property
    def policy(self) -> Precision:
        return precision(self.columns.precision, gradient=self.columns.gradient_format)

    @cached_property
    def parallel(self) -> DataParallel:
        names = ("tp", "cp", "dp", "zero", "zero_group", "pp")
        return DataParallel(**{name: getattr(self.columns, name) for name in names})

    @cached_property
    def micro_batches(self) -> Array:
        return self.job.global_batch // (self.columns.micro_batch * self.columns.dp)

    @cached_property
    def stages(self) -> Array:
        """Virtual stages of each row."""
        return np.asarray(self.columns.pp * self.columns.virtual_stages)

    @cached_property
    def kinds(self) -> Kinds:
        return stage_kinds(self.job.graph.body, self.stages)

    @cached_property
    def counts(self) -> tuple[Array, Array, Array, Array]:
        kinds = self.kinds
        ones = np.ones_like(self.stages)
        last = (self.stages > 1).astype(int)
        return ones, kinds.low_count, kinds.high_count, last

    @cached_property
    def priced(self) -> tuple[StagePrice, StagePrice, StagePrice, StagePrice]:
        """A first, a low, a high and a last virtual stage of each row."""
        kinds = self.kinds
        whole = (self.stages == 1).astype(int)
        nothing = np.zeros_like(whole)
        gather = Gather(
            columns=self.columns, job=self.job, on=self.on, policy=self.policy
        )
        ends = [gather.end(name) for name in ("embedding", "final_norm", "head")]
        layer, shared = gather.layer, gather.shared

        def stage(layers: Array, first: Array, last: Array) -> StagePrice:
            counts = (first, layers, last, last, -first * last)
            atoms = (ends[0], layer, *ends[1:], shared)
            parts = list(zip(counts, atoms, strict=True))
            optimizer = self.job.optimizer
            offload = self.columns.offload.of_states
            return stage_price(
                parts, self.parallel, self.policy, self.on, optimizer, offload
            )

        return (
            stage(kinds.first, nothing + 1, whole),
            stage(kinds.low, nothing, nothing),
            stage(kinds.high, nothing, nothing),
            stage(kinds.last, nothing, nothing + 1),
        )

    @cached_property
    def middle(self) -> StagePrice:
        """A middle stage where all are alike: of the low kind, or of the high one."""
        _, low, high, _ = self.priced
        is_low = self.counts[1] > 0
        values = {
            item.name: np.where(
                is_low, getattr(low, item.name), getattr(high, item.name)
            )
            for item in fields(StagePrice)
        }
        return StagePrice(**values)

    def on_rank(self, end: StagePrice, name: str) -> Array:
        """A quantity of a rank: its end chunk and the middle chunks beside it."""
        chunks = self.columns.virtual_stages - 1
        return np.asarray(getattr(end, name) + chunks * getattr(self.middle, name))

    @property
    def stride(self) -> Array:
        """Ranks of a stage."""
        return np.asarray(self.columns.tp * self.columns.cp * self.columns.dp)
