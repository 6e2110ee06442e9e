"""How many layers a stage may hold: from each layer on, the last one that fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.heterogeneous.candidates import Option
from profiles.arrays import Array

EXACT = 1e-12  # sums in another order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Room:
    """Of an option by layer the bytes that a stage has anyway, and for each micro-batch
    in flight; for each size of working set that a layer has, the last layer that may
    follow each one and has no larger one."""

    option: Option
    working: tuple[tuple[float, Array], ...]

    @classmethod
    def of(cls, option: Option) -> Room:
        sizes = np.unique(option.working_bytes).tolist()
        return cls(
            option=option,
            working=tuple((size, _run(option.working_bytes <= size)) for size in sizes),
        )

    def ends(self, in_flight: int, limit_bytes: float) -> Array:
        """[first layer] → the last one of the largest stage that is legal and needs no
        more than there is, and *limit_bytes*; before the first where none does.

        One with all layers is taken to need as much as it would among others.
        """
        option, room = self.option, self._left_bytes(limit_bytes)
        layers = np.arange(len(option.seconds))
        each = option.state_bytes + in_flight * option.saved_bytes
        sums = np.cumsum(each)
        found = layers - 1
        for working, run in self.working:
            most = np.searchsorted(sums, sums - each + room - working, side="right") - 1
            np.maximum(found, np.minimum(most, run), out=found)
        if not option.ends:
            found = np.minimum(found, len(layers) - 2)
        if not option.starts:
            found[0] = -1
        return np.maximum(found, layers - 1)

    def _left_bytes(self, limit_bytes: float) -> float:
        """What a stage has beside what is always there."""
        option = self.option
        most_bytes = min(option.capacity_bytes, limit_bytes) * (1 + EXACT)
        return most_bytes - option.base_bytes

    def most_bytes(self, limit_bytes: float) -> float:
        """The same beside the least working set, too."""
        return self._left_bytes(limit_bytes) - self.working[0][0]

    def is_legal(self, first: int, last: int) -> bool:
        """Whether a stage of those layers may be, if it fits."""
        ends = last == len(self.option.seconds) - 1
        return (self.option.starts or first > 0) and (self.option.ends or not ends)

    def held(self, first: int, last: int, in_flight: int) -> float:
        """Bytes of a stage of those layers."""
        option, here = self.option, slice(first, last + 1)
        alive = option.state_bytes[here] + in_flight * option.saved_bytes[here]
        whole = first == 0 and last == len(option.seconds) - 1
        return float(
            alive.sum()
            + option.working_bytes[here].max()
            + option.base_bytes
            - (option.alone_bytes if whole else 0.0)
        )


def _run(holds: Array) -> Array:
    """[layer] → the last one of those that *hold* from there on; the one before it
    where it does not itself."""
    layers = np.arange(len(holds))
    breaks = np.where(holds, len(holds), layers)
    return np.asarray(np.minimum.accumulate(breaks[::-1])[::-1] - 1)
