"""What stages on the meshes of a menu take at the least: their passes, and what their
gradient reduction takes longer than the last backward.

A gradient is summed once it is made, so a stage's reduction of c seconds begins when
its last backward of b does, at the earliest, and no rank steps before all have reduced:

    T ≥ when the last backward of s ends + late,  late = max(0, c − b)

The last backward of the first stage is the pipeline's last pass, so that its `late`
comes on top of all that others take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.stage_layers import Option, stages_sums

Array = NDArray[Any]
Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passes:
    """Seconds of each layer on a mesh, arrays [layers]: of a micro-batch, and of
    summing its gradients once a step; no stage that holds it takes less for it. But of
    a parameter that the model's ends share and both count, one with all layers takes
    the `shared` seconds once."""

    forward_s: Array
    backward_s: Array
    reduce_s: Array
    shared_backward_s: float = 0.0
    shared_reduce_s: float = 0.0

    @property
    def both_s(self) -> Array:
        return np.asarray(self.forward_s + self.backward_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stages:
    """[first, last] → seconds of a stage of those layers: forward and backward, each
    alone, and what its reduction is late; infinite where it cannot be. Of several
    options [option, first, last]."""

    both_s: Array
    forward_s: Array
    backward_s: Array
    late_s: Array

    @classmethod
    def of(cls, options: Sequence[Option], passes: Sequence[Passes]) -> Stages:
        """Those of each of the *options*, with its *passes*."""
        forward_s = stages_sums(np.array([one.forward_s for one in passes]))
        backward_s = stages_sums(np.array([one.backward_s for one in passes]))
        reduce_s = stages_sums(np.array([one.reduce_s for one in passes]))
        backward_s[:, 0, -1] -= [one.shared_backward_s for one in passes]
        reduce_s[:, 0, -1] -= [one.shared_reduce_s for one in passes]
        late_s = np.zeros_like(forward_s)
        np.subtract(reduce_s, backward_s, out=late_s, where=np.isfinite(forward_s))
        for each_s in (forward_s, backward_s):
            each_s[[not one.starts for one in options], 0] = np.inf
            each_s[[not one.ends for one in options], :, -1] = np.inf
        return cls(
            both_s=forward_s + backward_s,
            forward_s=forward_s,
            backward_s=backward_s,
            late_s=np.maximum(late_s, 0.0),
        )

    def where(self, fits: Array) -> Stages:
        """Those that *fit*."""
        return replace(
            self,
            both_s=np.where(fits, self.both_s, np.inf),
            forward_s=np.where(fits, self.forward_s, np.inf),
            backward_s=np.where(fits, self.backward_s, np.inf),
        )

    @property
    def is_late(self) -> Array:
        """Whether any of them is, of each option."""
        late = (self.late_s > 0) & np.isfinite(self.both_s)
        return np.asarray(late.any(axis=(-2, -1)))

    def least(self, options: Sequence[int]) -> Stages:
        """What none of those *options* goes below."""
        chosen = list(options)
        return Stages(
            both_s=self.both_s[chosen].min(axis=0),
            forward_s=self.forward_s[chosen].min(axis=0),
            backward_s=self.backward_s[chosen].min(axis=0),
            late_s=self.late_s[chosen].min(axis=0),
        )

    def beats(self, other: Stages) -> bool:
        """Whether it takes no longer, whatever the layers."""
        return bool(
            (self.both_s <= other.both_s).all()
            and (self.forward_s <= other.forward_s).all()
            and (self.backward_s <= other.backward_s).all()
            and (self.late_s <= other.late_s).all()
        )


def gathered(
    kinds: Sequence[Kind], passes: Sequence[Passes], stages: Stages
) -> dict[Kind, tuple[Stages, ...]]:
    """Of each kind what its options' *stages* do not go below: one for all that reduce
    in time, one for each way to reduce that may be late, but for those that another
    beats."""
    by_way: dict[Kind, dict[bytes, list[int]]] = {}
    late = stages.is_late
    for number, (kind, each) in enumerate(zip(kinds, passes, strict=True)):
        way = each.reduce_s.tobytes() if late[number] else b""
        by_way.setdefault(kind, {}).setdefault(way, []).append(number)
    return {
        kind: _unbeaten([stages.least(options) for options in ways.values()])
        for kind, ways in by_way.items()
    }


def _unbeaten(several: Sequence[Stages]) -> tuple[Stages, ...]:
    kept: list[Stages] = []
    for one in several:
        if not any(other.beats(one) for other in kept):
            kept = [other for other in kept if not one.beats(other)] + [one]
    return tuple(kept)
