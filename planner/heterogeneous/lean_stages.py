"""Stages of any mesh that need the least memory on the fullest device.

Within a *limit* of bytes, a stage of a kind that begins at layer k may end at any layer
up to E(k), as fewer layers need less (`stage_room`). Whether any stages fit is then

    R(s, k, d) = any over kinds, j of k…E(k)  R(s − 1, j + 1, d − devices)

over s stages that hold the layers from k on, on the last d devices: a stage with s from
it to the end holds min(s, m) micro-batches in flight (1F1B). The least limit is found
by halving. As in `stage_partition` devices are handed out in model order. One stage
alone, which needs less than it would among others, is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from planner.heterogeneous.bound import Late, never
from planner.heterogeneous.candidates import Kind, Option, unit_of
from planner.heterogeneous.partition import EXACT, Part, Partition, latency_s
from planner.heterogeneous.stage_room import Room
from profiles.arrays import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Lean:
    """The partition that needs least, None where none fits, and the bytes of its
    fullest stage: no partition goes below."""

    partition: Partition | None
    peak_bytes: float


NOTHING = Lean(partition=None, peak_bytes=inf)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cuts:
    """Ways to cut the layers over *units* of devices into so many *stages*, if they are
    given; of each kind its options by their numbers, but for those that need no less
    than another."""

    kinds: Mapping[Kind, Mapping[int, Room]]
    units: int
    layers: int
    micro_batches: int
    stages: int | None
    options: Sequence[Option]

    @classmethod
    def of(
        cls,
        options: Sequence[Option],
        *,
        devices: int,
        micro_batches: int,
        stages: int | None = None,
    ) -> Cuts:
        kinds: dict[Kind, dict[int, Option]] = {}
        unit = unit_of(options, devices)
        for number, option in enumerate(options):
            kind = option.kind(devices, unit)
            if option.devices <= devices and kind.possible:
                kinds.setdefault(kind, {})[number] = option
        return cls(
            kinds={kind: _unbeaten(several) for kind, several in kinds.items()},
            units=devices // unit,
            layers=len(options[0].seconds),
            micro_batches=micro_batches,
            stages=stages,
            options=options,
        )

    def leanest(self) -> Lean:
        """The cut of the layers over all devices that needs least."""
        return self.leaner(self.within(inf))

    def leaner(self, best: Lean, late: Late = never) -> Lean:
        """The leanest of all, of which *best* is one, or there is none; once it is
        *late*, the leanest so far."""
        low, high = 0.0, best.peak_bytes
        while high < inf and high - low > EXACT * high and not late():
            middle = (low + high) / 2
            found = self.within(middle)
            if found.partition is None:
                low = middle
            else:
                best, high = found, found.peak_bytes
        return best

    def within(self, limit_bytes: float) -> Lean:
        """Stages that need no more than they have, and *limit_bytes*: as few of them as
        may be, not those that need least."""
        alone = self._alone(limit_bytes)
        if alone is not None:
            return self._lean([alone])
        if self._work_bytes > self._room_bytes(limit_bytes) * (1 + EXACT):
            return NOTHING
        nothing = np.zeros((self.layers + 1, self.units + 1), dtype=bool)
        nothing[self.layers, 0] = True
        reached, ends = [nothing], list[Mapping[Kind, Array]]()
        most = min(self.layers, self.units, self.stages or self.units)
        for count in range(1, most + 1):
            if count <= self.micro_batches:
                ends.append(self._ends(count, limit_bytes))
            reached.append(_one_more(ends[-1], reached[-1]))
            if self.stages in (None, count) and reached[-1][0, self.units]:
                return self._lean(list(self._walk(reached, ends)))
            if not reached[-1].any():
                break
        return NOTHING

    @cached_property
    def _work_bytes(self) -> float:
        """What no stages need less than in all, of a micro-batch in flight."""
        each = [
            kind.size * (room.option.state_bytes + room.option.saved_bytes)
            for kind, rooms in self.kinds.items()
            for room in rooms.values()
        ]
        return float(np.min(each, axis=0).sum()) if each else 0.0

    def _room_bytes(self, limit_bytes: float) -> float:
        """What no stages have more than in all, but for what each has anyway."""
        most: dict[tuple[int, int], float] = {}
        for kind, rooms in self.kinds.items():
            home = kind.fewest - kind.size, kind.most
            room_bytes = max(room.most_bytes(limit_bytes) for room in rooms.values())
            most[home] = max(most.get(home, 0.0), room_bytes)
        return sum((end - start) * each for (start, end), each in most.items())

    def _alone(self, limit_bytes: float) -> Part | None:
        """All layers on all devices, with the option that needs least."""
        if self.stages not in (None, 1):
            return None
        last = self.layers - 1
        found = [
            (held, number)
            for kind, rooms in self.kinds.items()
            for number, room in rooms.items()
            if kind.size == self.units
            and room.is_legal(0, last)
            and (held := room.held(0, last, 1)) <= room.option.capacity_bytes
        ]
        least = min((one for one in found if one[0] <= limit_bytes), default=None)
        return Part(first=0, last=last, option=least[1]) if least else None

    def _ends(self, in_flight: int, limit_bytes: float) -> Mapping[Kind, Array]:
        """[first layer] → the last one that a stage of each kind may hold, but for one
        with all of them."""
        found = {
            kind: np.max(
                [room.ends(in_flight, limit_bytes) for room in rooms.values()], axis=0
            )
            for kind, rooms in self.kinds.items()
        }
        for ends in found.values():
            ends[0] = min(ends[0], self.layers - 2)
        return found

    def _walk(
        self, reached: Sequence[Array], ends: Sequence[Mapping[Kind, Array]]
    ) -> Iterator[Part]:
        """The stages that *reached* all layers, those in front as small as may be."""
        first, left = 0, self.units
        for number in range(len(reached) - 1, 0, -1):
            in_flight = min(number, self.micro_batches)
            behind = reached[number - 1]
            several = [
                (first + int(np.argmax(legal)), kind)
                for kind, most in ends[in_flight - 1].items()
                if kind.fewest <= left <= kind.most
                for legal in [behind[first + 1 : most[first] + 2, left - kind.size]]
                if legal.any()
            ]
            last, kind = min(several, key=lambda pair: pair[0])
            _, option = min(
                (room.held(first, last, in_flight), option)
                for option, room in self.kinds[kind].items()
                if room.is_legal(first, last)
            )
            yield Part(first=first, last=last, option=option)
            first, left = last + 1, left - kind.size

    def _lean(self, parts: Sequence[Part]) -> Lean:
        """*parts* with what the fullest of them needs."""
        held = [
            Room.of(self.options[part.option]).held(
                part.first, part.last, min(len(parts) - place, self.micro_batches)
            )
            for place, part in enumerate(parts)
        ]
        seconds = latency_s(parts, self.options, self.micro_batches)
        return Lean(
            partition=Partition(parts=tuple(parts), seconds=seconds),
            peak_bytes=max(held),
        )


def _unbeaten(options: Mapping[int, Option]) -> dict[int, Room]:
    """Of options of one kind, by their numbers, those that may be the leanest."""
    kept: dict[int, Option] = {}
    for number, one in options.items():
        if not any(_needs_no_more(other, one) for other in kept.values()):
            beaten = [it for it, other in kept.items() if _needs_no_more(one, other)]
            kept = {it: other for it, other in kept.items() if it not in beaten}
            kept[number] = one
    return {number: Room.of(one) for number, one in kept.items()}


def _needs_no_more(one: Option, other: Option) -> bool:
    """Whether every stage on *one* fits where it does on the *other*, and needs no
    more."""
    return (
        one.starts >= other.starts
        and one.ends >= other.ends
        and one.capacity_bytes >= other.capacity_bytes
        and one.base_bytes <= other.base_bytes
        and one.base_bytes - one.alone_bytes <= other.base_bytes - other.alone_bytes
        and bool((one.state_bytes <= other.state_bytes).all())
        and bool((one.saved_bytes <= other.saved_bytes).all())
        and bool((one.working_bytes <= other.working_bytes).all())
    )


def _one_more(ends: Mapping[Kind, Array], behind: Array) -> Array:
    """R over one stage more than *behind* is of."""
    found = np.zeros_like(behind)
    layers, units = (length - 1 for length in behind.shape)
    several = np.zeros((layers + 2, units + 1), dtype=np.int32)
    np.cumsum(behind, axis=0, out=several[1:])
    starts = np.arange(1, layers + 1)
    for kind, last in ends.items():
        there = slice(kind.fewest - kind.size, kind.most - kind.size + 1)
        if behind[:, there].any():
            counts = several[:, there]
            found[:-1, kind.left] |= counts[last + 2] > counts[starts]
    return found
