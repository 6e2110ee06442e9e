"""`Rows`: the stages of every row of columns, priced: first, middle and last ones."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import SQRT, Columns
from costmodel.data_parallel import DataParallel
from costmodel.gather import Gather
from costmodel.layer_runs import Run, stage_runs
from costmodel.machine import Machine
from costmodel.segments import counted, longest
from costmodel.stage import Part, StagePrice, stage_price
from profiles.errors import Unsupported
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
        columns, copies = self.columns, self.columns.copies
        names = ("tp", "cp", "ep", "etp", "zero", "zero_group")
        inside = columns.gpus <= self.on.island.domain
        return DataParallel(
            **{name: getattr(columns, name) for name in names},
            dp=columns.dp * copies,
            pp=-(-columns.pp // copies),
            apart=np.where(inside, 1, copies),
        )

    @cached_property
    def micro_batches(self) -> Array:
        return self.job.global_batch // (self.columns.micro_batch * self.columns.dp)

    @cached_property
    def stages(self) -> Array:
        """Virtual stages of each row."""
        return np.asarray(self.columns.pp * self.columns.virtual_stages)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        return stage_runs(self.job.graph, self.stages)

    @cached_property
    def counts(self) -> tuple[Array, ...]:
        return tuple(run.count for run in self.runs)

    @cached_property
    def priced(self) -> tuple[StagePrice, ...]:
        """A virtual stage of each run: the first, middle ones and the last."""
        whole = (self.stages == 1).astype(int)
        nothing = np.zeros_like(whole)
        gather = Gather(
            columns=self.columns, job=self.job, on=self.on, policy=self.policy
        )
        ends = [gather.end(name) for name in ("embedding", "final_norm", "head")]
        shared, cut = gather.shared, bool((self.columns.recompute == SQRT).any())

        def stage(run: Run, first: Array, last: Array) -> StagePrice:
            body, segments = _segments(gather, run) if cut else (_body(gather, run), ())
            counts = (first, last, last, -first * last)
            parts = [*body, *zip(counts, (*ends, shared), strict=True)]
            optimizer = self.job.optimizer
            offload = self.columns.offload.of_states
            return stage_price(
                parts,
                self.parallel,
                self.policy,
                self.on,
                optimizer,
                offload,
                segments,
            )

        first, *middle, last = self.runs
        return (
            stage(first, nothing + 1, whole),
            *(stage(run, nothing, nothing) for run in middle),
            stage(last, nothing, nothing + 1),
        )

    @cached_property
    def middle(self) -> StagePrice:
        """The least of the middle stages; where all are alike, any of them."""
        priced, counts = self.priced[1:-1], self.counts[1:-1]

        def least(name: str) -> Array:
            values = [getattr(item, name) for item in priced]
            there = [
                np.where(count > 0, value, np.inf)
                for count, value in zip(counts, values, strict=True)
            ]
            found = np.minimum.reduce(there)
            return np.asarray(np.where(np.isfinite(found), found, values[-1]))

        return StagePrice(
            **{item.name: least(item.name) for item in fields(StagePrice)}
        )

    def on_rank(self, end: StagePrice, name: str) -> Array:
        """A quantity of a rank: its end chunk and the middle chunks beside it; of the
        first rank's both ends where stages lie in pairs."""
        chunks = self.columns.virtual_stages - 1
        alone = getattr(end, name) + chunks * getattr(self.middle, name)
        if not self.columns.in_pairs.any():
            return np.asarray(alone)
        both = getattr(self.priced[0], name) + getattr(self.priced[-1], name)
        return np.asarray(np.where(self.columns.in_pairs, both, alone))

    @property
    def stride(self) -> Array:
        """Ranks of a stage."""
        return np.asarray(self.columns.tp * self.columns.cp * self.columns.dp)


def _body(gather: Gather, run: Run) -> list[Part]:
    return [(run.layers[name], atom) for name, atom in gather.layers.items()]


def _segments(gather: Gather, run: Run) -> tuple[list[Part], list[list[Part]]]:
    """The numbered layers of a stage, where some rows make them again in segments: the
    layers that keep their input and those inside, and the longest segment.

    Raises Unsupported where layers are of several kinds: which of them keep their
    input hangs on their order.
    """
    if len(run.layers) > 1:
        raise Unsupported(
            f"recompute sqrt of {gather.job.model}, whose layers are of several kinds "
            f"({', '.join(run.layers)}), is not searched; simulate prices it"
        )
    ((name, count),) = run.layers.items()
    redone = gather.columns.recompute == SQRT
    begins = np.where(redone, counted(count), count)
    whole, inside = gather.layers[name], gather.inside[name]
    segment = np.where(redone, longest(count), 0)
    return (
        [(begins, whole), (count - begins, inside)],
        [[(np.minimum(segment, 1), whole), (np.maximum(segment - 1, 0), inside)]],
    )
