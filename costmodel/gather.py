"""`Gather`: atoms of columns, priced once for each distinct one, gathered by row.

An atom hangs on (tp, cp, micro-batch, ep, etp), on sequence parallelism and the kind of
context parallelism, and on the retention preset: some hundreds for hundred thousands of
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.atoms import Atom, atom, block_prices, shared_parameters
from costmodel.columns import RECOMPUTES, Columns
from costmodel.layout import CP_KINDS
from costmodel.machine import Machine
from costmodel.offload import offloaded
from costmodel.retention import Retention, preset
from costmodel.segments import inner
from costmodel.sharding import Degrees, entry_bytes
from costmodel.tied import tied_holder
from profiles.graph import Block
from profiles.job import Job
from profiles.precision import Precision

Array = NDArray[Any]
PLACE: Final = ("tp", "cp", "micro_batch", "ep", "etp")


@dataclass(kw_only=True)
class Gather:
    """Each row's atom of each block."""

    columns: Columns
    job: Job
    on: Machine
    policy: Precision

    @cached_property
    def _combos(self) -> tuple[Array, Array]:
        """Distinct places, and each row's index among them."""
        keys = [getattr(self.columns, name) for name in PLACE]
        return _unique_rows(np.stack(keys, axis=1))

    @cached_property
    def _variant(self) -> Array:
        """Each row's (cp kind, sequence parallel) as one number."""
        return np.asarray(
            self.columns.cp_kind * 2 + (self.columns.sequence_parallel > 0)
        )

    def _degrees(self, variant: int) -> Degrees:
        keys, _ = self._combos
        kind, split = divmod(variant, 2)
        return Degrees(
            **{name: keys[:, place] for place, name in enumerate(PLACE)},
            imbalance=self.on.imbalance,
            seq_len=self.job.seq_len,
            sequence_parallel=bool(split),
            cp_kind=CP_KINDS[kind],
            flash_attention=self.columns.flash_attention,
        )

    @cached_property
    def layers(self) -> dict[str, Atom]:
        """Of each kind of numbered layer."""
        return {
            block.name: self._gather(
                block.name, list(RECOMPUTES), self.columns.recompute
            )
            for block, _ in self.job.graph.runs
        }

    @cached_property
    def _body(self) -> list[Block]:
        return [block for block, _ in self.job.graph.runs]

    @cached_property
    def inside(self) -> dict[str, Atom]:
        """Of each kind of numbered layer, inside a segment (`costmodel.segments`)."""
        one = np.zeros_like(self.columns.recompute)
        return {
            block.name: self._gather(block.name, [inner(block)], one)
            for block, _ in self.job.graph.runs
        }

    def end(self, name: str) -> Atom:
        return self._gather(name, ["none"], np.zeros_like(self.columns.recompute))

    @cached_property
    def shared(self) -> Atom:
        """The parameter that embedding and head share; nothing if they do not."""
        keys, combo = self._combos
        holder, name = tied_holder(self.job.graph)
        block = self.job.graph.block(holder)
        prices = block_prices(block, self._degrees(0), self.policy, self.on)
        tied = 1 if self.job.graph.tied else 0
        held = prices[name]
        trained, frozen = (
            np.broadcast_to(count * tied, len(keys))
            for count in (held.parameters, held.frozen_parameters)
        )
        both = replace(held, parameters=trained, frozen_parameters=frozen)
        return shared_parameters(both).take(combo)

    def _gather(
        self, name: str, presets: Sequence[str | Retention], chosen: Array
    ) -> Atom:
        """Each row's atom of the block *name*, under the one of *presets* that is
        *chosen*."""
        block = self.job.graph.block(name)
        keys, combo = self._combos
        atoms: list[Atom] = []
        place = np.full((2 * len(CP_KINDS), len(presets)), -1)
        for variant in np.unique(self._variant):
            degrees = self._degrees(int(variant))
            prices = block_prices(block, degrees, self.policy, self.on)
            entry = entry_bytes(block, degrees, self.policy)
            for code in np.unique(chosen[self._variant == variant]):
                place[variant, code] = len(atoms)
                named = presets[code]
                retention = preset(named, block) if isinstance(named, str) else named
                if block in self._body:
                    retention = offloaded(retention, block, self.columns.offload)
                atoms.append(
                    atom(
                        block,
                        prices,
                        retention,
                        entry,
                        stops_early=self.on.software.stops_early,
                        sharpness=self.on.software.sharpness,
                    )
                )
        row = place[self._variant, chosen] * len(keys) + combo
        table = {
            item.name: np.concatenate(
                [np.broadcast_to(getattr(one, item.name), len(keys)) for one in atoms]
            )
            for item in fields(Atom)
        }
        return Atom(**table).take(row)


def _unique_rows(keys: Array) -> tuple[Array, Array]:
    """Distinct rows and the index of each, by packing a row into one number."""
    spans = [int(span) for span in keys.max(axis=0) + 1]
    packed = np.ravel_multi_index(tuple(keys.T), spans)
    distinct, index = np.unique(packed, return_inverse=True)
    return np.stack(np.unravel_index(distinct, spans), axis=1), index
