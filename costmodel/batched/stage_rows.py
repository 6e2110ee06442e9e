"""`StageRows`: one pipeline stage a row, of any numbered layers, priced as columns are.

What cuts of a model into stages of unequal layers are weighed by: seconds of a
micro-batch and bytes on a device of each stage that there may be, of 1F1B.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from costmodel.batched.pricing import transfer_s
from costmodel.batched.row_bytes import rank_bytes
from costmodel.batched.rows import Layers, Rows, Run
from costmodel.machine import always_crosses
from costmodel.stages import Atom, Contents, Sends, StageBytes, sends, tied_sync
from costmodel.timeline import reduce_tail_s
from profiles.arrays import Array


@dataclass(kw_only=True)
class StageRows(Rows):
    """Stages of pipelines of one stage a rank: of candidate *row*[i] of *source* stage
    *rank*[i] of pp, with *layers*[kind][i] numbered layers, and the embedding or the
    head at the ends. Their blocks are gathered once, by *source*."""

    source: Rows
    row: Array
    layers: Layers
    rank: Array

    @classmethod
    def of(cls, source: Rows, row: Array, layers: Layers, rank: Array) -> StageRows:
        """Of candidates whose blocks *source* gathers, once for all that is asked."""
        return cls(
            columns=source.columns.take(row),
            book=source.book,
            source=source,
            row=row,
            layers=layers,
            rank=rank,
        )

    @cached_property
    def counts(self) -> tuple[Array, ...]:
        return (np.ones_like(self.rank),)

    @cached_property
    def contents(self) -> tuple[Contents, ...]:
        first, last = self.rank == 0, self.rank == self.columns.pp - 1
        run = Run(count=np.ones_like(self.rank), layers=self.layers)
        return (self._stage(run, first.astype(int), last.astype(int)),)

    @cached_property
    def _alike(self) -> tuple[Array, Array]:
        """Every row for itself: few stages of a search are alike."""
        every = np.arange(len(self.columns))
        return every, every

    @cached_property
    def _where(self) -> Array:
        return self.source._alike[1][self.row]

    @cached_property
    def _body(self) -> dict[str, Atom]:
        found = self.source._body
        return {name: one[self._where] for name, one in found.items()}

    @cached_property
    def _ends(self) -> tuple[Atom, ...]:
        return tuple(one[self._where] for one in self.source._ends)

    @cached_property
    def _tied(self) -> tuple[tuple[Atom, Atom | None], ...]:
        where = self._where
        return tuple(
            (twice[where], None if once is None else once[where])
            for twice, once in self.source._tied
        )

    @cached_property
    def _alike_layers(self) -> tuple[tuple[str, int, Atom], ...]:
        found = self.source._alike_layers
        return tuple((name, size, one[self._where]) for name, size, one in found)

    @cached_property
    def lightest(self) -> StageBytes:
        """The stage itself: its rank has no other."""
        return self.held[0]

    @property
    def needed_bytes(self) -> Array:
        """Of the stage's ranks, at the least."""
        return rank_bytes(self, self.held[0], self.rank, is_last=False)

    @property
    def passes_s(self) -> tuple[Array, Array]:
        """A micro-batch there and back, with what its sends hold up."""
        (stage,) = self.priced
        within = self._sends.in_passes_s
        onward = self.rank < self.columns.pp - 1
        return stage.forward_s + onward * within, stage.backward_s + (
            self.rank > 0
        ) * within

    @property
    def beside_s(self) -> Array:
        """A transfer to the next stage, beside the passes."""
        return self._sends.beside_s

    @property
    def tail_s(self) -> Array:
        """From the stage's last backward until its gradients are reduced."""
        (stage,) = self.priced
        return reduce_tail_s(
            stage.reduce_s,
            stage.backward_s,
            buckets=stage.buckets,
            overlap=self.hides_gradients,
        )

    @property
    def update_s(self) -> Array:
        """The optimizer, and the gathering of what it updated."""
        (stage,) = self.priced
        return np.asarray(stage.step_s + stage.gather_s)

    @property
    def tied_s(self) -> Array:
        """Summing the gradient of a tied embedding between the ends."""
        columns = self.columns
        found = tied_sync(
            self.job,
            self.on,
            self.policy,
            tp=columns.tp,
            pp=columns.pp,
            stride=self.stride,
            inside=self.stride * (columns.pp - 1) < self.on.island.domain,
        )
        return np.asarray(found.seconds)

    @cached_property
    def _sends(self) -> Sends:
        far = always_crosses(self.stride, self.on.island)
        return sends(transfer_s(self, far), self.on)


def any_cut_s(
    *,
    trip_s: ArrayLike,
    slowest_s: ArrayLike,
    forward_share: ArrayLike,
    pp: ArrayLike,
    micro_batches: ArrayLike,
    short_before_s: ArrayLike = 0.0,
) -> Array:
    """At least the seconds of all passes of 1F1B whose slowest stage takes *slowest_s*,
    however its layers are cut into stages.

    A cut is known by its slowest stage alone, which takes s seconds a micro-batch there
    and back; a trip of one micro-batch through all p stages and back takes w, whatever
    the cut. Of m micro-batches, with e the slowest stage and k = p − 1 − e stages
    behind it that take c with the sends (`makespan` has the paths):

        m s                         stage e is busy
        w + (m − 1) s − k f         along stage e, which k forwards f have filled before
        w + (m − 1) s − (k s − c)   the same, its last micro-batch down and back again
        w ⌊(m − 1) / p⌋ + …         windows between the first stage and the last

    What the stages behind e fall short of s, k s − c, is no more than all do, p s − w.

    *forward_share* is the most of any stage's pass that is forward, *short_before_s*
    what the stages before the slowest fall short of it, at the least. Grows with
    *slowest_s*. Broadcasts.

    >>> equal = dict(trip_s=12.0, slowest_s=3.0, forward_share=1 / 3, pp=4)
    >>> float(any_cut_s(**equal, micro_batches=8))
    33.0
    """
    trip, s, p = np.asarray(trip_s), np.asarray(slowest_s), np.asarray(pp)
    after_first = np.asarray(micro_batches) - 1
    busy = (after_first + 1) * s
    filled = np.minimum(p - 1, after_first) * np.asarray(forward_share) * s
    along = trip + after_first * s - filled
    times, left = np.divmod(after_first, p)
    short = np.maximum(p * s - trip - np.asarray(short_before_s), 0.0)
    windows = trip + np.maximum(times * trip + left * s, after_first * s - short)
    paths = [busy, along, np.where(times > 0, windows, trip)]
    return np.asarray(np.maximum.reduce(paths))
