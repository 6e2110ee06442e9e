"""A pipeline's streams as integers, in an order in which one pass prices them.

Depends only on (schedule, pp, virtual_stages, micro_batches), and is cached. A *row*
numbers (kind, slot): row = kind · slots + slot, an index into tables of costs, and -1
for none (some ranks of a schedule may do less). A *place* numbers an action by rank and
position in its stream.

Of a schedule that does not flush it is one step of a long run, from one of a rank's
updates to its next one: its M backwards, and before each the forward of a micro-batch
that is as far ahead. Forwards of later steps' micro-batches bear the numbers that they
have in their own step, so that each number has its forward and its backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from costmodel.schedule.action import COMPUTE, NOTHING, Action, IntArray, Kind, Shape
from costmodel.schedule.schedules import SCHEDULES, codes

_GRADIENTS: Final = [COMPUTE.index(kind) for kind in (Kind.B, Kind.I, Kind.OVERLAP_F_B)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """Passes of all ranks; arrays [pp, actions] in stream order.

    What follows `order` runs in it, an order that respects streams and transfers: for
    each action its rank, the link it sends on (`no_link` if it does not), and the
    number of the action it awaits a transfer from, counted from 1 (0 if it awaits
    none), done so many steps `ago`. `carried` are the micro-batches whose activations a
    rank holds as its step begins.
    """

    schedule: str
    shape: Shape
    codes: IntArray
    rows: IntArray
    source_rows: IntArray  # of the sender that an action awaits; -1 if none
    order: IntArray  # places
    ordered_rows: IntArray
    ranks: list[int]
    awaits: list[int]
    links: IntArray
    no_link: int
    last_backward: IntArray  # places, by slot
    finishing: IntArray  # [pp, slots of a rank]: as the last B or W of each ends
    ago: list[int]  # empty where a step has all that it needs
    carried: IntArray  # by rank

    def action(self, rank: int, position: int) -> Action:
        """The action at *position* of a rank's stream, spelled out."""
        return self.shape.action(int(self.codes[rank, position]))


@lru_cache(maxsize=16)  # some 100 bytes an action
def program_of(
    schedule: str, pp: int, virtual_stages: int, micro_batches: int
) -> Program:
    """A schedule, compiled once. Raises as `schedule.require_schedule`."""
    shape, coded = codes(schedule, pp, virtual_stages, micro_batches)
    carried = np.zeros(pp, dtype=np.int64)
    stale = SCHEDULES[schedule].stale
    if stale is not None:
        carried = stale.ahead(np.arange(pp), pp)
        coded = _steady(shape, carried)
    rows, micro_batch = np.divmod(coded, micro_batches)
    sources = _sources(rows, micro_batch, shape)
    flat = sources.ravel()
    ago = _steps_ago(sources, carried, micro_batches)
    order = _order(rows, np.where(ago > 0, -1, sources), shape)
    number = np.zeros(coded.size + 1, dtype=np.int64)  # its last answers source -1
    number[order] = np.arange(1, coded.size + 1)
    ordered_rows = rows.ravel()[order]
    rank = np.repeat(np.arange(pp), coded.shape[1])
    links = np.full(coded.size, pp * pp)
    awaiting = np.flatnonzero(flat >= 0)
    links[flat[awaiting]] = rank[flat[awaiting]] * pp + rank[awaiting]
    source_rows = np.where(sources >= 0, rows.ravel()[sources], -1)
    last, finishing = _ends(coded, shape)
    return Program(
        schedule=schedule,
        shape=shape,
        codes=coded,
        rows=rows,
        source_rows=source_rows,
        order=order,
        ordered_rows=ordered_rows,
        ranks=rank[order].tolist(),
        awaits=number[flat[order]].tolist(),
        links=links[order],
        no_link=pp * pp,
        last_backward=last,
        finishing=finishing,
        ago=ago.ravel()[order].tolist() if carried.any() else [],
        carried=carried,
    )


def _steady(shape: Shape, ahead: IntArray) -> IntArray:
    """Of each rank a forward, so far *ahead*, and a backward in turn."""
    numbers = np.arange(shape.micro_batches)
    ranks = np.arange(shape.pp)[:, None]
    coded = np.empty((shape.pp, 2 * len(numbers)), dtype=np.int64)
    onward = (numbers + ahead[:, None]) % shape.micro_batches
    coded[:, ::2] = shape.code(Kind.F, ranks, onward)
    coded[:, 1::2] = shape.code(Kind.B, ranks, numbers)
    return coded


def _steps_ago(sources: IntArray, ahead: IntArray, micro_batches: int) -> IntArray:
    """How many steps before its own an action was done that a forward awaits: a rank
    that is further ahead did it so many turns before."""
    found = np.zeros_like(sources)
    if ahead.any():
        turns = np.arange(micro_batches) - np.append(0, ahead[:-1] - ahead[1:])[:, None]
        found[:, ::2] = -(turns // micro_batches)
        found[0] = 0
    return found


def _sources(rows: IntArray, micro_batch: IntArray, shape: Shape) -> IntArray:
    """The place of the action on another rank that each action awaits; -1 if none."""
    kind, stage = np.divmod(rows, shape.slots)
    places = np.arange(rows.size).reshape(rows.shape)
    forward = kind == COMPUTE.index(Kind.F)
    gradient = np.isin(kind, _GRADIENTS)
    before = np.full((shape.slots + 1, shape.micro_batches), -1)
    before[stage[forward] + 1, micro_batch[forward]] = places[forward]
    behind = np.full((shape.slots + 1, shape.micro_batches), -1)
    behind[stage[gradient], micro_batch[gradient]] = places[gradient]
    awaited = np.where(
        forward, before[stage, micro_batch], behind[stage + 1, micro_batch]
    )
    actions = rows.shape[1]
    elsewhere = (awaited >= 0) & (awaited // actions != places // actions)
    return np.where(elsewhere & (forward | gradient), awaited, -1)


def _order(rows: IntArray, sources: IntArray, shape: Shape) -> IntArray:
    """An order that respects streams and transfers."""
    if not _only_whole(rows, shape):
        return _swept(sources.ravel(), len(rows))
    times, flat = _unit_times(rows), sources.ravel()
    awaiting = np.flatnonzero(flat >= 0)
    if np.all(times[flat[awaiting]] < times[awaiting]):
        return np.argsort(times, kind="stable")
    return _swept(flat, len(rows))


def _only_whole(rows: IntArray, shape: Shape) -> bool:
    """Whether all that ranks do is F and B, each as often as the others."""
    return bool(rows.min() >= 0 and rows.max() < 2 * shape.slots)


def _unit_times(rows: IntArray) -> IntArray:
    """When actions would start if each took 1, as 1F1B fills, alternates and drains.

    Rising along each stream, whatever the schedule.
    """
    pp, actions = rows.shape
    position = np.arange(actions)
    stages = int(rows.max()) // 2 + 1
    forward = rows < stages
    rank = np.arange(pp)[:, None]
    fill = (~forward).argmax(axis=1)[:, None] - 1
    drain = actions + 1 - forward[:, ::-1].argmax(axis=1)[:, None]
    late = np.where(position < drain, pp - 1, 2 * (pp - 1) - rank)
    return np.asarray(position + np.where(position < fill, rank, late)).ravel()


def _swept(sources: IntArray, pp: int) -> IntArray:
    """Sweep the ranks down and up, each going as far as what it awaits is done."""
    awaited = sources.tolist()
    total = len(awaited)
    done = bytearray(total + 1)
    done[-1] = True  # what source -1 finds
    ends = range(total // pp, total + 1, total // pp)
    at = [end - total // pp for end in ends]
    sweep = [*range(pp), *range(pp - 2, 0, -1)]
    order: list[int] = []
    while len(order) < total:
        progress = len(order)
        for rank in sweep:
            place, end = at[rank], ends[rank]
            while place < end and done[awaited[place]]:
                done[place] = True
                order.append(place)
                place += 1
            at[rank] = place
        assert len(order) > progress, "a schedule's streams wait for each other"
    return np.array(order)


def _ends(coded: IntArray, shape: Shape) -> tuple[IntArray, IntArray]:
    """Last backwards, and each rank's slots in order of them."""
    place = np.full((len(COMPUTE), shape.slots, shape.micro_batches), -1)
    there = np.flatnonzero(coded != NOTHING)
    place.ravel()[coded.ravel()[there]] = there
    last = place[1:].max(axis=(0, 2))
    return last, np.argsort(last).reshape(shape.pp, shape.slots // shape.pp)
