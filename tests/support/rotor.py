"""rotor: the fastest persistent schedule of a chain in a given memory.

    C(i, j, M)  least seconds of forward and backward of links i..j with M bytes, when
                the input of i is held (and not counted in M)

    C(i, i, M) = f_i + b_i                      if  a_i + r_i + max(t_i, u_i) ≤ M
    C(i, j, M) = min( record,  min over i < k ≤ j of checkpoint(k) )
        record         = C(i, i, M) + C(i+1, j, M − r_i)
        checkpoint(k)  = Σ f_i..f_{k−1} + C(k, j, M − a_k) + C(i, k−1, M)
                         if the sweep fits:  a_{j+1} + a_q + a_{q+1} + t_q ≤ M
                         for i ≤ q < k  (the input of i is not counted)

a_i are input bytes of link i, r_i its record, t_i and u_i its forward's and backward's
transient bytes. Memory is counted in slots, sizes rounded up, so that what is found
fits; O(L³ · slots) additions, on whole columns of memory at once.

.. [1] Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for
   heterogeneous chains", 2019, arXiv 1911.13214.

`Chain`: a stage as rotor sees it, one link after another.

Link i (from 0) reads `output_bytes[i]` and makes `output_bytes[i + 1]`. Its forward may
keep nothing, its input, or the whole record that its backward needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

import numpy as np

from costmodel.simulation import Option
from profiles.arrays import Array
from profiles.errors import InvalidSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Seconds and bytes of links in order; `output_bytes` has the chain's input first.

    `record_bytes` are what a link's backward needs, its output included and its input
    not. Transient bytes live inside a pass, beside what it reads and makes.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    output_bytes: tuple[float, ...]
    record_bytes: tuple[float, ...]
    forward_transient_bytes: tuple[float, ...]
    backward_transient_bytes: tuple[float, ...]

    def __post_init__(self) -> None:
        links = len(self.forward_s)
        same = (
            *(self.backward_s, self.record_bytes),
            *(self.forward_transient_bytes, self.backward_transient_bytes),
        )
        if not links or any(len(one) != links for one in same):
            raise InvalidSpec(
                f"a chain of {links} links has as many numbers of each kind, at least 1"
            )
        if len(self.output_bytes) != links + 1:
            raise InvalidSpec(
                f"a chain of {links} links has {links + 1} output_bytes, its input's "
                f"first; got {len(self.output_bytes)}"
            )

    def __len__(self) -> int:
        return len(self.forward_s)

    @property
    def least_s(self) -> float:
        """A step that makes nothing again."""
        return sum(self.forward_s) + sum(self.backward_s)

    @classmethod
    def alike(
        cls,
        links: int,
        *,
        forward_s: float = 1.0,
        backward_s: float = 2.0,
        output_bytes: float = 1.0,
        record_bytes: float = 1.0,
        transient_bytes: float = 0.0,
    ) -> Chain:
        """A chain of equal links.

        >>> Chain.alike(3).least_s
        9.0
        """
        return cls(
            forward_s=(forward_s,) * links,
            backward_s=(backward_s,) * links,
            output_bytes=(output_bytes,) * (links + 1),
            record_bytes=(record_bytes,) * links,
            forward_transient_bytes=(transient_bytes,) * links,
            backward_transient_bytes=(transient_bytes,) * links,
        )


def chain_of_layers(
    layers: Sequence[tuple[Option, float, float]], entry_bytes: float
) -> Chain:
    """Layers as links: of each the option that keeps everything (its menu's first),
    its forward and its backward seconds; *entry_bytes* is what a layer hands on.

    What a layer saves has its input in it; its record has its output instead, which is
    as large.
    """
    kept = tuple(one.saved_bytes for one, _, _ in layers)
    return Chain(
        forward_s=tuple(forward for _, forward, _ in layers),
        backward_s=tuple(backward for _, _, backward in layers),
        output_bytes=(entry_bytes,) * (len(layers) + 1),
        record_bytes=kept,
        forward_transient_bytes=(0.0,) * len(layers),
        backward_transient_bytes=tuple(one.working_bytes for one, _, _ in layers),
    )


SLOTS: Final = 500


class Pass(StrEnum):
    """What an execution does with a link."""

    FORWARD_ALL = "Fall"  # keep the record
    FORWARD_KEEP = "Fck"  # keep the input
    FORWARD_NONE = "Fnone"  # keep nothing
    BACKWARD = "B"
    OFFLOAD = "D2H"  # what holds the link's input: its checkpoint, or the record before
    FETCH = "H2D"  # the same back


Execution = tuple[tuple[Pass, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Passes in order and their seconds; no passes and infinite if none fits."""

    seconds: float
    passes: Execution


def rotor(
    chain: Chain, memory_bytes: float, *, slots: int = SLOTS, records: bool = True
) -> Schedule:
    """The fastest persistent schedule within *memory_bytes*, the chain's input apart.

    Without *records* a link is recorded just before its own backward, as in Revolve.

    >>> found = rotor(Chain.alike(3), 3, slots=3)
    >>> " ".join(f"{name}{link}" for name, link in found.passes)
    'Fck0 Fnone1 Fall2 B2 Fall0 Fall1 B1 B0'
    """
    return Rotor(chain, memory_bytes, slots=slots, records=records).schedule()


class Rotor:
    """The table of a chain: C(0, j, M) for all memories up to *memory_bytes*."""

    def __init__(
        self, chain: Chain, memory_bytes: float, *, slots: int, records: bool = True
    ) -> None:
        self.chain, self.records, self.slots = chain, records, slots
        self.slot_bytes = memory_bytes / slots if memory_bytes > 0 else inf
        self._input = self._in_slots(chain.output_bytes[:-1])
        self._output = self._in_slots(chain.output_bytes[1:])
        self._record = self._in_slots(chain.record_bytes)
        self._forward = self._in_slots(chain.forward_transient_bytes)
        self._backward = self._in_slots(chain.backward_transient_bytes)
        self._memory = np.arange(slots + 1)
        self._before = np.concatenate([[0.0], np.cumsum(chain.forward_s)])
        links = len(chain)
        self._best = np.full((links, links, slots + 1), inf)
        self._shifted = np.full((links, links, slots + 1), inf)  # by what k's input is
        self._fill()

    def seconds(self, slots: int | None = None) -> float:
        """The whole chain's least seconds with so many slots, all of them if None."""
        at = self.slots if slots is None else slots
        return float(self._best[0, -1, at])

    def schedule(self) -> Schedule:
        """The passes that take the least seconds."""
        seconds = self.seconds()
        if seconds == inf:
            return Schedule(seconds=inf, passes=())
        passes = tuple(self.passes(0, len(self.chain) - 1, self.slots))
        return Schedule(seconds=seconds, passes=passes)

    def table(self, i: int, j: int) -> Array:
        """C(i, j, ·): seconds by slots."""
        return np.asarray(self._best[i, j])

    def sweep_slots(self, i: int, k: int) -> int:
        """Slots that a sweep from link i up to k needs while nothing is done yet."""
        return int(self._sweeps(i, len(self.chain) - 1)[k - i - 1])

    def in_slots(self, size_bytes: float) -> int:
        """One size in slots."""
        return int(self._in_slots((size_bytes,))[0])

    def _in_slots(self, sizes: tuple[float, ...]) -> Array:
        """Sizes rounded up; more than all slots is one more than all of them."""
        whole = np.ceil(np.array(sizes) / self.slot_bytes - 1e-9)
        return np.asarray(np.minimum(whole, self.slots + 1), dtype=np.int64)

    def _fill(self) -> None:
        links = len(self.chain)
        alone = self._input + self._record + np.maximum(self._forward, self._backward)
        for i in range(links):
            one = self.chain.forward_s[i] + self.chain.backward_s[i]
            self._put(i, i, np.where(self._memory >= alone[i], one, inf))
        for length in range(1, links):
            for i in range(links - length):
                j = i + length
                best = self._checkpointed(i, j).min(axis=0)
                if self.records:
                    best = np.minimum(best, self._recorded(i, j))
                self._put(i, j, best)

    def _put(self, i: int, j: int, seconds: Array) -> None:
        self._best[i, j] = seconds
        self._shifted[i, j] = later(seconds, int(self._input[i]))

    def _checkpointed(self, i: int, j: int) -> Array:
        """Seconds by the link k before which a checkpoint is kept, and memory."""
        swept = self._before[i + 1 : j + 1] - self._before[i]
        seconds = self._shifted[i + 1 : j + 1, j] + self._best[i, i:j]
        seconds += swept[:, None]
        seconds[self._memory < self._sweeps(i, j)[:, None]] = inf
        return np.asarray(seconds)

    def _recorded(self, i: int, j: int) -> Array:
        rest = later(self._best[i + 1, j], int(self._record[i]))
        return np.asarray(self._best[i, i] + rest)

    def _sweeps(self, i: int, j: int) -> Array:
        """Slots that sweeps from link i to each later link, up to j, need."""
        q = slice(i, j)
        held = self._input[q] + self._output[q] + self._forward[q]
        held[0] -= self._input[i]
        return np.asarray(self._output[j] + np.maximum.accumulate(held))

    def passes(self, i: int, j: int, slots: int) -> Iterator[tuple[Pass, int]]:
        """The best schedule of links i..j with so many slots, which must be one."""
        if i == j:
            yield from ((Pass.FORWARD_ALL, i), (Pass.BACKWARD, i))
            return
        best = self._best[i, j, slots]
        if self.records and self._recorded(i, j)[slots] <= best:
            yield Pass.FORWARD_ALL, i
            yield from self.passes(i + 1, j, slots - int(self._record[i]))
            yield Pass.BACKWARD, i
            return
        k = i + 1 + int(np.argmin(self._checkpointed(i, j)[:, slots]))
        yield Pass.FORWARD_KEEP, i
        yield from ((Pass.FORWARD_NONE, link) for link in range(i + 1, k))
        yield from self.passes(k, j, slots - int(self._input[k]))
        yield from self.passes(i, k - 1, slots)


def later(seconds: Array, slots: int) -> Array:
    """*seconds* by memory, of which so many slots are taken."""
    if slots >= len(seconds):
        return np.full_like(seconds, inf)
    return np.concatenate([np.full(slots, inf), seconds[: len(seconds) - slots]])


def peak_bytes(chain: Chain, execution: Execution) -> float:
    """The most that *execution* holds beside the chain's input, pass by pass.

    Raises ValueError for a pass whose input or record is not there.
    """
    sizes, records = chain.output_bytes, chain.record_bytes
    kept, recorded, away = {0}, set[int](), set[int]()
    peak, last, live = 0.0, len(chain) - 1, -1
    for name, link in execution:
        if name is Pass.OFFLOAD or name is Pass.FETCH:
            _move(name, link, kept, recorded, away)
            here = sum(sizes[one] for one in kept if one)
            peak = max(peak, here + sum(records[one] for one in recorded))
            continue
        held = link in kept or link - 1 in recorded
        backward = name is Pass.BACKWARD
        if link not in recorded if backward else not held and live != link:
            raise ValueError(f"{name}{link}: what it needs is not there")
        if name in (Pass.FORWARD_ALL, Pass.FORWARD_KEEP) and not held:
            kept.add(link)
            held = True
        recorded.discard(link)
        here = sum(sizes[one] for one in kept if one)
        here += sum(records[one] for one in recorded)
        if backward:
            here += sizes[link] + records[link] + chain.backward_transient_bytes[link]
            kept.discard(link)
            last, live = link - 1, -1
        elif name is Pass.FORWARD_ALL:
            here += sizes[link] + records[link] + chain.forward_transient_bytes[link]
            recorded.add(link)
        else:
            here += sizes[last + 1] + sizes[link + 1] + (0 if held else sizes[link])
            here += chain.forward_transient_bytes[link]
            live = link + 1
        peak = max(peak, here)
    return peak


def _move(
    name: Pass, link: int, kept: set[int], recorded: set[int], away: set[int]
) -> None:
    """Take what holds the input of *link* off the device, or put it back; of the two
    kinds of holders a record is its link's number from below: ~(link − 1)."""
    checkpoint, record = link, ~(link - 1)
    there = away if name is Pass.FETCH else kept | {~one for one in recorded}
    holder = checkpoint if checkpoint in there else record
    if holder not in there:
        raise ValueError(f"{name}{link}: what it moves is not there")
    home, number = (kept, holder) if holder >= 0 else (recorded, ~holder)
    if name is Pass.OFFLOAD:
        home.discard(number)
        away.add(holder)
    else:
        away.discard(holder)
        home.add(number)
