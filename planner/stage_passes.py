"""What stages on the meshes of a menu take at the least: their passes, what their
gradient reduction takes longer than the last backward, and their step.

A gradient is summed once it is made, so a stage's reduction of c seconds begins when
its last backward of b does, at the earliest, and no rank steps before all have reduced:

    T ≥ when the last backward of s ends + late,  late = max(0, c − b)

The last backward of the first stage is the pipeline's last pass, so that its `late`
comes on top of all that others take. Once all have reduced, each rank updates its
parameters and gathers what others did, as far as the next forward does not hide that;
with what a backward loses to a reduction beside it this is its `update`, and the
longest of these comes on top of all (as `costmodel.stage` and `timeline` have it). The
pipeline's two ends then sum the gradient of a tied table, others do not:

    T ≥ max(update of an end + tied, update of another) = tied + max(…, update − tied)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.data_parallel import exposed_s
from costmodel.gradient_reduction import reduce_tail_s
from planner.stage_layers import Option, stages_sums

Array = NDArray[Any]
Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True, eq=False)
class Passes:
    """Seconds of each layer on a mesh, arrays [layers]: of a micro-batch, and of
    summing its gradients, updating and gathering its parameters once a step; no stage
    that holds it takes less for it. But of a parameter that the model's ends share and
    both count, one with all layers takes the `shared` seconds once. Where passes hide
    what is gathered or reduced, they lose `contention` of it."""

    forward_s: Array
    backward_s: Array
    reduce_s: Array
    step_s: Array
    gather_s: Array
    messages: Array  # that a layer's gradients fill
    layers: Array | float = 1.0  # that each of them stands for
    hides_gathers: bool = False
    hides_reductions: bool = False
    contention: float = 0.0
    shared_backward_s: float = 0.0
    shared_reduce_s: float = 0.0
    shared_step_s: float = 0.0
    shared_gather_s: float = 0.0
    shared_messages: float = 0.0

    @property
    def both_s(self) -> Array:
        return np.asarray(self.forward_s + self.backward_s)

    @cached_property
    def stages_s(self) -> tuple[Array, Array, Array, Array]:
        """[first, last] → seconds of a stage: forward, backward, what its reduction is
        late, its update. Infinite or 0 where last is before first."""
        forward_s = stages_sums(self.forward_s)
        backward_s = stages_sums(self.backward_s)
        reduce_s = stages_sums(self.reduce_s)
        backward_s[0, -1] -= self.shared_backward_s
        reduce_s[0, -1] -= self.shared_reduce_s
        late_s = np.zeros_like(forward_s)
        np.subtract(reduce_s, backward_s, out=late_s, where=np.isfinite(forward_s))
        return forward_s, backward_s, np.maximum(late_s, 0.0), _updates_s(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stages:
    """[first, last] → seconds of a stage of those layers: forward and backward, each
    alone, what its reduction is late, and its update; infinite where it cannot be. Of
    several options [option, first, last]."""

    both_s: Array
    forward_s: Array
    backward_s: Array
    late_s: Array
    update_s: Array

    @classmethod
    def of(
        cls, options: Sequence[Option], passes: Sequence[Passes], tied_s: float = 0.0
    ) -> Stages:
        """Those of each of the *options*, with its *passes*; what ends take on top of
        updates, *tied_s*, is no update of others."""
        forward_s, backward_s, late_s, update_s = (
            np.array(each)
            for each in zip(*(one.stages_s for one in passes), strict=True)
        )
        for each_s in (forward_s, backward_s):
            each_s[[not one.starts for one in options], 0] = np.inf
            each_s[[not one.ends for one in options], :, -1] = np.inf
        update_s[:, 1:, :-1] = without_tied_s(update_s[:, 1:, :-1], tied_s)
        return cls(
            both_s=forward_s + backward_s,
            forward_s=forward_s,
            backward_s=backward_s,
            late_s=late_s,
            update_s=update_s,
        )

    @property
    def is_late(self) -> bool:
        """Whether the reduction of any of them is."""
        return bool(np.any((self.late_s > 0) & np.isfinite(self.both_s)))

    def late_where(self, fits: Array) -> list[bool]:
        """The same of each option, of those that *fit*."""
        ever = np.asarray((self.late_s > 0).any(axis=(-2, -1)))
        return [
            late and bool(np.any((late_s > 0) & fit & np.isfinite(both_s)))
            for late, late_s, fit, both_s in zip(
                ever, self.late_s, fits, self.both_s, strict=True
            )
        ]

    def least(self, options: Sequence[int], fits: Array) -> Stages:
        """What none of those *options* goes below where it *fits*."""

        def lowest(values: Array) -> Array:
            found = np.full(values.shape[1:], np.inf)
            for number in options:
                np.minimum(found, values[number], out=found, where=fits[number])
            return found

        chosen = list(options)
        return Stages(
            both_s=lowest(self.both_s),
            forward_s=lowest(self.forward_s),
            backward_s=lowest(self.backward_s),
            late_s=self.late_s[chosen].min(axis=0),
            update_s=self.update_s[chosen].min(axis=0),
        )

    def beats(self, other: Stages) -> bool:
        """Whether it takes no longer, whatever the layers."""
        return bool(
            (self.both_s <= other.both_s).all()
            and (self.forward_s <= other.forward_s).all()
            and (self.backward_s <= other.backward_s).all()
            and (self.late_s <= other.late_s).all()
            and (self.update_s <= other.update_s).all()
        )


def without_tied_s(update_s: Array, tied_s: float) -> Array:
    """Updates of stages that are no end, beyond what ends take for a tied table."""
    return np.maximum(update_s - tied_s, 0.0)


def _updates_s(passes: Passes) -> Array:
    """[first, last] → seconds of the update of a stage; 0 where there is none."""
    names = "forward_s", "backward_s", "reduce_s", "step_s", "gather_s", "messages"
    layers = np.array([getattr(passes, name) for name in names])
    sums = np.triu(_sums(layers))
    forward_s, backward_s, reduce_s, step_s, gather_s, messages = sums
    run = np.maximum(np.triu(_sums((layers[0] > 0) * passes.layers)), 1)
    for known, shared_s in (
        (backward_s, passes.shared_backward_s),
        (reduce_s, passes.shared_reduce_s),
        (step_s, passes.shared_step_s),
        (gather_s, passes.shared_gather_s),
        (messages, passes.shared_messages),
    ):
        known[0, -1] -= shared_s
    found = step_s + exposed_s(
        gather_s,
        forward_s,
        run,
        overlapped=passes.hides_gathers,
        contention=passes.contention,
    )
    if passes.hides_reductions:
        tail_s = reduce_tail_s(
            reduce_s, backward_s, buckets=np.maximum(messages, 1), overlap=True
        )
        found += passes.contention * (reduce_s - tail_s)
    return np.asarray(found)


def _sums(values: Array) -> Array:
    """[…, first, last] → the sum between; of no use where last is before first."""
    ends = np.cumsum(values, axis=-1)
    return np.asarray(ends[..., None, :] - (ends - values)[..., None])


def gathered(
    kinds: Sequence[Kind], passes: Sequence[Passes], stages: Stages, fits: Array
) -> dict[Kind, tuple[Stages, ...]]:
    """Of each kind what those of its options' *stages* that *fit* do not go below: one
    for all that reduce in time, one for each way to reduce that may be late, but for
    those that another beats."""
    by_way: dict[Kind, dict[bytes, list[int]]] = {}
    late = stages.late_where(fits)
    for number, (kind, each) in enumerate(zip(kinds, passes, strict=True)):
        way = each.reduce_s.tobytes() if late[number] else b""
        by_way.setdefault(kind, {}).setdefault(way, []).append(number)
    return {
        kind: _unbeaten([stages.least(options, fits) for options in ways.values()])
        for kind, ways in by_way.items()
    }


def _unbeaten(several: Sequence[Stages]) -> tuple[Stages, ...]:
    kept: list[Stages] = []
    for one in several:
        if not any(other.beats(one) for other in kept):
            kept = [other for other in kept if not one.beats(other)] + [one]
    return tuple(kept)
