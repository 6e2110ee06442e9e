"""What stages on the meshes of a menu take at the least: their passes, and what their
gradient reduction takes longer than the last backward.

A gradient is summed once it is made, so a stage's reduction of c seconds begins when
its last backward of b does, at the earliest, and no rank steps before all have reduced:

    T ≥ when the last backward of s ends + late,  late = max(0, c − b)

The last backward of the first stage is the pipeline's last pass, so that its `late`
comes on top of all that others take.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.stage_partition import Option, stages_sums

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
    """[first, last] → seconds of a stage of those layers: forward and backward, forward
    alone, and what its reduction is late; infinite where it cannot be."""

    both_s: Array
    forward_s: Array
    late_s: Array

    @classmethod
    def of(cls, option: Option, passes: Passes, fits: Array) -> Stages:
        """Those that *option* has, where they *fit*."""
        forward_s = np.where(fits, option.sums(passes.forward_s), np.inf)
        reduce_s = stages_sums(passes.reduce_s)
        reduce_s[0, -1] -= passes.shared_reduce_s
        there = np.isfinite(reduce_s)
        backward_s = np.where(there, stages_sums(passes.backward_s), 0.0)
        backward_s[0, -1] -= passes.shared_backward_s
        late_s = np.where(there, reduce_s, 0.0) - backward_s
        return cls(
            both_s=forward_s + backward_s,
            forward_s=forward_s,
            late_s=np.maximum(late_s, 0.0),
        )

    @property
    def is_late(self) -> bool:
        """Whether any of them is."""
        return bool(self.late_s[np.isfinite(self.both_s)].any())

    def or_less(self, other: Stages) -> Stages:
        """What neither goes below."""
        return Stages(
            both_s=np.minimum(self.both_s, other.both_s),
            forward_s=np.minimum(self.forward_s, other.forward_s),
            late_s=np.minimum(self.late_s, other.late_s),
        )

    def beats(self, other: Stages) -> bool:
        """Whether it takes no longer, whatever the layers."""
        return bool(
            (self.both_s <= other.both_s).all()
            and (self.forward_s <= other.forward_s).all()
            and (self.late_s <= other.late_s).all()
        )


def gathered(
    found: Iterable[tuple[Kind, Passes, Stages]],
) -> dict[Kind, tuple[Stages, ...]]:
    """Of each kind what its stages do not go below: one for all that reduce in time,
    one for each way to reduce that may be late, but for those that another beats."""
    by_way: dict[Kind, dict[bytes, Stages]] = {}
    for kind, passes, stages in found:
        way = passes.reduce_s.tobytes() if stages.is_late else b""
        ways = by_way.setdefault(kind, {})
        ways[way] = ways[way].or_less(stages) if way in ways else stages
    return {kind: _unbeaten(list(ways.values())) for kind, ways in by_way.items()}


def _unbeaten(several: Sequence[Stages]) -> tuple[Stages, ...]:
    kept: list[Stages] = []
    for one in several:
        if not any(other.beats(one) for other in kept):
            kept = [other for other in kept if not one.beats(other)] + [one]
    return tuple(kept)
