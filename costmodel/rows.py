"""`Rows`: the stages of every row of columns, priced: first, middle and last ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.atom_book import AtomBook
from costmodel.columns import Columns
from costmodel.contents import Contents
from costmodel.data_parallel import DataParallel
from costmodel.gather import Gather, Segments
from costmodel.machine import Machine
from costmodel.stage import StagePrice, stage_price
from costmodel.stage_bytes import StageBytes, stage_bytes
from profiles.job import Job
from profiles.precision import Precision

Array = NDArray[Any]


@dataclass(kw_only=True)
class Rows:
    """Candidates with what all their prices share, each part made when first asked."""

    columns: Columns
    book: AtomBook
    segments: Segments | None = None  # of all stages; by columns where None

    def __post_init__(self) -> None:
        known = self.book.offload
        assert self.columns.offload == known, "a book of prices with other offloading"

    @property
    def job(self) -> Job:
        return self.book.job

    @property
    def on(self) -> Machine:
        return self.book.on

    @property
    def policy(self) -> Precision:
        return self.book.policy

    @cached_property
    def parallel(self) -> DataParallel:
        columns, copies, plus = (
            self.columns,
            self.columns.copies,
            self.columns.zero_plus,
        )
        names = ("tp", "cp", "ep", "etp", "zero", "zero_group")
        inside = columns.gpus <= self.on.island.domain
        return DataParallel(
            **{name: getattr(columns, name) for name in names},
            dp=columns.dp * copies,
            pp=-(-columns.pp // copies),
            apart=np.where(inside, 1, copies),
            copies=copies,
            quantized_weights=plus.quantized_weights,
            hpz_partition_size=plus.hpz_partition_size,
            quantized_gradients=plus.quantized_gradients,
        )

    @cached_property
    def micro_batches(self) -> Array:
        return self.job.global_batch // (self.columns.micro_batch * self.columns.dp)

    @cached_property
    def _gather(self) -> Gather:
        return Gather(columns=self.columns, book=self.book, lengths=self.segments)

    @cached_property
    def counts(self) -> tuple[Array, ...]:
        """How many virtual stages each run has."""
        return self._gather.counts()

    @cached_property
    def contents(self) -> tuple[Contents, ...]:
        """What a virtual stage of each run holds: the first, middle ones, the last."""
        return self._gather.contents()

    @cached_property
    def held(self) -> tuple[StageBytes, ...]:
        """Their bytes alone."""
        offload = self.columns.offload.of_states
        return tuple(
            stage_bytes(one, self.parallel, self.policy, self.on, offload)
            for one in self.contents
        )

    @cached_property
    def priced(self) -> tuple[StagePrice, ...]:
        """Their seconds and bytes."""
        offload = self.columns.offload.of_states
        return tuple(
            stage_price(
                one,
                self.parallel,
                self.policy,
                self.on,
                self.job.optimizer,
                offload,
                self.micro_batches // self.columns.copies,
            )
            for one in self.contents
        )

    @cached_property
    def lightest(self) -> StageBytes:
        """The least of the middle stages; where all are alike, any of them."""
        names = [item.name for item in fields(StageBytes)]
        return StageBytes(**{name: self._middle(self.held, name) for name in names})

    @cached_property
    def lightest_put_off(self) -> Array:
        """The least that I keeps for W, of the middle stages."""
        return self._middle([one.total for one in self.contents], "weight_bytes")

    def held_by(self, end: StageBytes, name: str) -> Array:
        """Of a rank: its *end* chunk and the middle chunks beside it; of the first
        rank both ends where stages lie in pairs."""
        chunks = self.columns.virtual_stages - 1
        alone = getattr(end, name) + chunks * getattr(self.lightest, name)
        return self._in_pairs(self.held, name, alone)

    def held_at(self, name: str, stage: Array) -> Array:
        """Of virtual *stage*."""
        return self._at([getattr(one, name) for one in self.held], stage)

    def put_off_at(self, stage: Array) -> Array:
        """The bytes that I keeps for W, of virtual *stage*."""
        return self._at([one.total.weight_bytes for one in self.contents], stage)

    def _at(self, values: Sequence[Array], stage: Array) -> Array:
        found, start = values[0], np.zeros_like(stage)
        for one, count in zip(values, self.counts, strict=True):
            found = np.where(stage >= start, one, found)
            start = start + count
        return np.asarray(found)

    def seconds_of(self, end: StagePrice, name: str) -> Array:
        """The same of a rank's seconds."""
        chunks = self.columns.virtual_stages - 1
        alone = getattr(end, name) + chunks * self._middle(self.priced, name)
        return self._in_pairs(self.priced, name, alone)

    def _in_pairs(self, of: Sequence[Any], name: str, alone: Array) -> Array:
        if not self.columns.in_pairs.any():
            return np.asarray(alone)
        both = getattr(of[0], name) + getattr(of[-1], name)
        return np.asarray(np.where(self.columns.in_pairs, both, alone))

    def _middle(self, of: Sequence[Any], name: str) -> Array:
        values = [getattr(item, name) for item in of[1:-1]]
        there = [
            np.where(count > 0, value, np.inf)
            for count, value in zip(self.counts[1:-1], values, strict=True)
        ]
        found = np.minimum.reduce(there)
        return np.asarray(np.where(np.isfinite(found), found, values[-1]))

    @property
    def stride(self) -> Array:
        """Ranks of a stage."""
        return np.asarray(self.columns.tp * self.columns.cp * self.columns.dp)
