"""POFO: keep, make again or offload what a chain saves, all at once.

    minimise    seconds of all passes + waits for copies
    waits       max(0, away / link − forward) + max(0, away / link − backward) → _total

The first sweep forward meets the inputs of links one after another. Each is held by a
checkpoint (a_k) or by the record of the link before (r_{k−1}); this holder, of h bytes,
stays, or is away until the backward comes to link k. What lies between is rotor's:

    V(k, M, A)  least seconds of links k.. with M bytes, the holder of k among them, and
                up to A bytes away; R = M − h, M' = R, or M with A − h for A

    V(k, M, A) = min( C(k, last, R),  record,  min over k' > k of sweep(k') )
        record      = f_k + b_k + V_record(k+1, M', A)        if  C(k, k, R) is finite
        sweep(k')   = Σ f_k..f_{k'−1} + V_checkpoint(k', M', A) + C(k, k'−1, R)

C is `rotor`'s table. Copies hide behind whole passes, as in
`costmodel.stages.offload_cost`; a tensor that is away takes nothing from the sweep's
next step until it is needed. The buffers of copies under way are not in M. Bytes are
counted in slots, rounded up; O(L² · slots · slots) on whole arrays.

.. [1] Beaumont, Eyraud-Dubois and Shilova, "Efficient combination of rematerialization
   and offloading for training DNNs", NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from profiles.arrays import Array
from tests.support.rotor import Chain, Execution, Pass, Rotor, later

SLOTS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloaded:
    """Passes and copies in order, their seconds with waits, and the bytes away; no
    passes and infinite seconds if none fits."""

    seconds: float
    away_bytes: float
    passes: Execution


def pofo(
    chain: Chain,
    memory_bytes: float,
    link_bytes_per_s: float,
    *,
    slots: int = SLOTS,
    away_slots: int = SLOTS,
) -> Offloaded:
    """The fastest schedule within *memory_bytes*, the chain's input apart, beside a
    link to the host that carries so much each way.

    >>> chain = Chain.alike(3)
    >>> [pofo(chain, 3, rate, slots=3, away_slots=4).seconds for rate in (0, 0.25, 0.5)]
    [11.0, 10.0, 9.0]
    """
    return _Pofo(chain, memory_bytes, link_bytes_per_s, slots, away_slots).schedule()


@dataclass(frozen=True, slots=True)
class _Step:
    """A way on from link k: to link *end*, by record or by sweep, its holder away or
    not; or all the rest by rotor where *end* is behind the last link."""

    end: int
    record: bool
    away: bool


class _Pofo:
    """V for both kinds of holder, as arrays [memory, away] by link."""

    def __init__(
        self,
        chain: Chain,
        memory_bytes: float,
        rate: float,
        slots: int,
        away_slots: int,
    ) -> None:
        self.chain, self.rate, self.slots = chain, rate, slots
        self.rotor = Rotor(chain, memory_bytes, slots=slots)
        self.links = len(chain)
        self._before = np.concatenate([[0.0], np.cumsum(chain.forward_s)])
        holders = zip(chain.output_bytes[1:-1], chain.record_bytes[:-1], strict=True)
        largest = sum(max(pair) for pair in holders)
        usable = rate > 0 and largest > 0
        self.away_slot_bytes = largest / away_slots if usable else inf
        self._away = np.arange(away_slots + 1 if usable else 1)
        self._table: dict[tuple[int, bool], Array] = {}
        for link in reversed(range(self.links)):
            for recorded in (False, True) if link else (False,):
                self._table[link, recorded] = self._least(link, recorded)

    def schedule(self) -> Offloaded:
        """The best over all bytes away."""
        seconds = self._table[0, False][self.slots]
        totals = [self._total(one, self._bytes(at)) for at, one in enumerate(seconds)]
        at = int(np.argmin(totals))
        if totals[at] == inf:
            return Offloaded(seconds=inf, away_bytes=0.0, passes=())
        passes = tuple(self._passes(0, False, self.slots, at))
        away = self._bytes_of(passes)
        total = self._total(float(seconds[at]), away)
        return Offloaded(seconds=total, away_bytes=away, passes=passes)

    def _total(self, passes_s: float, away_bytes: float) -> float:
        if not away_bytes or passes_s == inf:
            return passes_s
        copy_s, forward_s = away_bytes / self.rate, float(self._before[-1])
        backward_s = passes_s - forward_s
        waits = max(copy_s - forward_s, 0.0) + max(copy_s - backward_s, 0.0)
        return passes_s + waits

    def _bytes(self, at: int) -> float:
        return at * self.away_slot_bytes if at else 0.0

    def _holder(self, link: int, recorded: bool) -> float:
        """Bytes of what holds the input of *link*; the chain's own is not counted."""
        if not link:
            return 0.0
        chain = self.chain
        return chain.record_bytes[link - 1] if recorded else chain.output_bytes[link]

    def _steps(self, link: int) -> Iterator[_Step]:
        yield _Step(end=self.links, record=False, away=False)
        for away in (False, True) if link and len(self._away) > 1 else (False,):
            for end in range(link + 1, self.links):
                yield _Step(end=end, record=False, away=away)
            if link + 1 < self.links:
                yield _Step(end=link + 1, record=True, away=away)

    def _least(self, link: int, recorded: bool) -> Array:
        best = np.full((self.slots + 1, len(self._away)), inf)
        for step in self._steps(link):
            np.minimum(best, self._seconds(link, recorded, step), out=best)
        return best

    def _seconds(self, link: int, recorded: bool, step: _Step) -> Array:
        """Seconds from *link* on by *step*, by memory (with the holder) and away."""
        held = self.rotor.in_slots(self._holder(link, recorded))
        last = self.links - 1
        if step.end == self.links:
            return later(self.rotor.table(link, last), held)[:, None]
        rest = self._table[step.end, step.record]
        if step.record:
            own = np.where(np.isfinite(self.rotor.table(link, link)), 0.0, inf)
            passes_s = self.chain.forward_s[link] + self.chain.backward_s[link]
        else:
            own = self.rotor.table(link, step.end - 1).copy()
            own[: self.rotor.sweep_slots(link, step.end)] = inf
            passes_s = self._before[step.end] - self._before[link]
        beside = later(own, held)[:, None] + passes_s
        if not step.away:
            return np.asarray(_shifted(rest, held, 0) + beside)
        moved = self._away_slots(self._holder(link, recorded))
        return np.asarray(_shifted(rest, 0, moved) + beside)

    def _away_slots(self, size_bytes: float) -> int:
        return int(np.ceil(size_bytes / self.away_slot_bytes - 1e-9))

    def _passes(
        self, link: int, recorded: bool, slots: int, away: int
    ) -> Iterator[tuple[Pass, int]]:
        """The best schedule from *link* on, pass by pass."""
        best = self._table[link, recorded][slots, away]
        step = next(
            one
            for one in self._steps(link)
            if self._at(self._seconds(link, recorded, one), slots, away) <= best
        )
        size = self._holder(link, recorded)
        left = slots - self.rotor.in_slots(size)
        if step.end == self.links:
            yield from self.rotor.passes(link, self.links - 1, left)
            return
        if step.record:
            yield Pass.FORWARD_ALL, link
        else:
            yield Pass.FORWARD_KEEP, link
            yield from ((Pass.FORWARD_NONE, one) for one in range(link + 1, step.end))
        if step.away:
            yield Pass.OFFLOAD, link
        free = slots if step.away else left
        more = away - self._away_slots(size) if step.away else away
        yield from self._passes(step.end, step.record, free, more)
        if step.away:
            yield Pass.FETCH, link
        if step.record:
            yield Pass.BACKWARD, link
        else:
            yield from self.rotor.passes(link, step.end - 1, left)

    def _at(self, seconds: Array, slots: int, away: int) -> float:
        return float(seconds[slots, away if seconds.shape[1] > 1 else 0])

    def _bytes_of(self, passes: Execution) -> float:
        """Exactly what *passes* offload."""
        recorded: set[int] = set()
        total = 0.0
        for name, link in passes:
            if name is Pass.FORWARD_ALL:
                recorded.add(link)
            elif name is Pass.OFFLOAD:
                total += self._holder(link, link - 1 in recorded)
        return total


def _shifted(seconds: Array, memory: int, away: int) -> Array:
    """*seconds* by memory and away, of which so many slots are taken."""
    found = np.full_like(seconds, inf)
    rows, columns = seconds.shape
    if memory < rows and away < columns:
        found[memory:, away:] = seconds[: rows - memory, : columns - away]
    return found
