"""What the fullest rank of each row of columns needs: a lower bound of its peak."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce

import numpy as np

from costmodel.batched.rows import Rows
from costmodel.layout import SCHEDULES, Columns
from costmodel.machine import Footprint
from costmodel.stages import (
    AtomBook,
    PeakContents,
    Process,
    StageBytes,
    StatePolicy,
    memory,
    pipeline_buffers,
)
from profiles.arrays import Array


def needed_bytes(rows: Rows, footprint: Footprint | None = None) -> Array:
    """At least what the fullest rank of each row needs, with the margin of *footprint*
    (that of *rows*' machine, unless one is given)."""
    most: Array = np.maximum.reduce(_by_rank(rows, footprint))
    return most


def leanest_bytes(
    columns: Columns, book: AtomBook, footprint: Footprint | None = None
) -> Array:
    """The same whatever each stage makes again (`--recompute auto`).

    Layers are joined into segments where a rank has one stage, of one kind of layer;
    each rank has the length that it needs least with.
    """
    alone = (columns.virtual_stages == 1) & ~columns.in_pairs
    longest = -(-(book.job.graph.body + 2) // columns.pp) * alone
    least = _by_rank(Rows(columns=columns, book=book, segments=(1, 1)), footprint)
    for lengths in _lengths(int(longest.max(initial=1))):
        joins = np.flatnonzero(lengths[0] <= longest)
        some = columns.take(joins)
        here = _by_rank(Rows(columns=some, book=book, segments=lengths), footprint)
        for one, other in zip(least, here, strict=False):  # no pairs join
            one[joins] = np.minimum(one[joins], other)
    return np.asarray(np.maximum.reduce(least))


def _lengths(longest: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover 2 … *longest*, each number alone up to 8, and then within an
    eighth."""
    fewest = 2
    while fewest <= longest:
        most = max(fewest, fewest * 9 // 8)
        yield fewest, most
        fewest = most + 1


def _by_rank(rows: Rows, footprint: Footprint | None) -> list[Array]:
    """At least what each of the ranks that can be the fullest needs, 0 where it is not
    there: the first, the first of each run of middle ones, and the last; of presets
    also those that hold pairs of stages, or put a part of backwards off."""
    habits = rows.on.framework.footprint if footprint is None else footprint
    first, counts, at_end = rows.held[0], rows.counts[1:-1], rows.counts[-1]
    pp, several = rows.columns.pp, rows.columns.virtual_stages > 1
    alone, copies = ~rows.columns.in_pairs, rows.columns.copies
    zero = np.zeros_like(pp)
    found = [zero + rank_bytes(rows, first, zero, habits, is_last=False)]
    start = zero + 1
    for place, count in enumerate(counts, 1):
        there = (count > 0) & ~several & alone
        found.append(_where(rows, there, partial(_middle_bytes, place), start, habits))
        start = start + count
    there = several & (pp > 2) & alone
    found.append(_where(rows, there, _lightest_bytes, zero + 1, habits))
    found.append(_where(rows, (at_end > 0) & alone, _last_bytes, pp - 1, habits))
    pairs = rows.columns.in_pairs
    if pairs.any():
        for rank in (np.minimum(1, pp - 1), np.maximum(pp // copies - 1, 0)):
            found.append(_where(rows, pairs, _pair_bytes, rank, habits))
    if rows.columns.puts_off.any() and rows.segments is None:
        fills = _fills(rows)
        found.append(_where(rows, fills, _put_off_bytes, zero, habits))
    return found


def _where(
    rows: Rows,
    there: Array,
    of: Callable[[Rows, Array, Footprint], Array],
    rank: Array,
    habits: Footprint,
) -> Array:
    """What a *rank* needs *of* the rows where it is *there*, 0 elsewhere."""
    found = np.zeros(len(there))
    some = np.flatnonzero(there)
    if len(some):
        found[some] = of(rows.only(some), rank[some], habits)
    return found


def _middle_bytes(place: int, rows: Rows, rank: Array, footprint: Footprint) -> Array:
    return rank_bytes(rows, rows.held[place], rank, footprint, is_last=False)


def _lightest_bytes(rows: Rows, rank: Array, footprint: Footprint) -> Array:
    return rank_bytes(rows, rows.lightest, rank, footprint, is_last=False)


def _last_bytes(rows: Rows, rank: Array, footprint: Footprint) -> Array:
    return rank_bytes(rows, rows.held[-1], rank, footprint, is_last=True)


def rank_bytes(
    rows: Rows,
    end: StageBytes,
    rank: Array,
    footprint: Footprint | None = None,
    *,
    is_last: bool,
) -> Array:
    """A rank that holds the chunk *end* and, if interleaved, middle chunks."""
    columns, alive = rows.columns, rows.in_flight(rank)
    own = _own_chunk(alive, columns, is_last=is_last)
    activations = own * end.saved_bytes + (alive - own) * rows.lightest.saved_bytes
    working = np.maximum(end.forward_working_bytes, end.backward_working_bytes)
    gathered = end.gathered_bytes
    if columns.in_pairs.any():
        last, pairs = rows.held[-1], columns.in_pairs
        entered = (
            _entered(columns, rows.micro_batches) * rows.held[0].saved_bytes
            + last.saved_bytes
        )
        turned = np.maximum(last.forward_working_bytes, last.backward_working_bytes)
        activations = np.where(pairs, entered, activations)
        working = np.where(pairs, turned, working)
        gathered = np.where(pairs, np.maximum(gathered, last.gathered_bytes), gathered)
    names = ("parameters", "frozen_parameters", "expert_parameters")
    states = {name: rows.held_by(end, name) for name in names}
    states["versions"] = rows.versions(rank)
    return _bytes(rows, states, activations, working, gathered, footprint)


def _pair_bytes(rows: Rows, rank: Array, footprint: Footprint) -> Array:
    """A rank that lies between others and holds a stage and its mirror image, as its
    first backward begins: in a V that of the far one, both ways of either."""
    columns, m = rows.columns, rows.micro_batches
    pp, in_v = columns.pp, columns.in_v
    places = (rank, pp * columns.virtual_stages - 1 - rank)

    def pair(name: str) -> tuple[Array, Array]:
        near, far = (rows.held_at(name, place) for place in places)
        return near, far

    room = np.minimum(pp, m) // 2
    near = np.where(in_v, np.minimum(2 * pp - 1 - rank, m), np.minimum(pp - rank, room))
    far = np.minimum(rank + 1, np.where(in_v, m, room))
    saved = pair("saved_bytes")
    ways = [pair(f"{way}_working_bytes") for way in ("forward", "backward")]
    working = reduce(
        np.maximum, [np.where(in_v, way[1], np.minimum(*way)) for way in ways]
    )
    names = ("parameters", "frozen_parameters", "expert_parameters")
    return _bytes(
        rows,
        {name: np.add(*pair(name)) for name in names},
        near * saved[0] + far * saved[1],
        working,
        np.maximum(*pair("gathered_bytes")),
        footprint,
    )


def _fills(rows: Rows) -> Array:
    """Where backwards are split, and a step fills the pipeline."""
    columns, m, pp = rows.columns, rows.micro_batches, rows.columns.pp
    fills = (pp > 1) & (m >= np.where(columns.in_v, 2 * pp - 1, pp))
    return np.asarray(columns.puts_off & fills)


def _put_off_bytes(rows: Rows, _: Array, footprint: Footprint) -> Array:
    """The last rank when most W are put off and another I runs, where `_fills`.

    zb-h1, zb-interleaved   pp − 1 W, and the forwards that are ahead
    zb-v                    pp − 1 W of either chunk
    dualpipe-v              pp − 1 W of both chunks in turn
    """
    columns, pp = rows.columns, rows.columns.pp
    in_v, several = columns.in_v, columns.virtual_stages > 1
    stages = pp * columns.virtual_stages
    near = np.where(in_v, pp - 1, stages - 1)
    far = np.where(in_v, pp, near)
    saved, kept, working = (
        (rows.held_at(name, near), rows.held_at(name, far))
        for name in ("saved_bytes", "weight_bytes", "backward_working_bytes")
    )
    at_once = columns.schedule == SCHEDULES.index("dualpipe-v")
    of_near = np.where(at_once, (pp - 1) // 2, pp - 1)
    of_far = np.where(at_once, pp // 2, pp - 1)
    folded = of_near * kept[0] + of_far * kept[1] + np.maximum(saved[0], kept[0])
    light = rows.lightest
    least = np.minimum(np.where(several, light.weight_bytes, kept[0]), kept[0])
    fewest = np.minimum(np.where(several, light.saved_bytes, saved[0]), saved[0])
    woven = (pp - 1) * least + np.maximum(fewest, least) + (stages - pp) * fewest
    lightest = np.where(several, light.backward_working_bytes, working[0])
    names = ("parameters", "frozen_parameters", "expert_parameters")
    return _bytes(
        rows,
        {
            name: np.where(
                in_v,
                rows.held_at(name, near) + rows.held_at(name, far),
                rows.held_by(rows.held[-1], name),
            )
            for name in names
        },
        np.where(in_v, folded, woven),
        np.where(in_v, working[0], np.minimum(lightest, working[0])),
        np.zeros_like(pp),
        footprint,
    )


def _bytes(
    rows: Rows,
    states: dict[str, Array],
    activations: Array,
    working: Array,
    gathered: Array,
    footprint: Footprint | None,
) -> Array:
    columns = rows.columns
    pieces = memory(
        PeakContents(
            gathered_bytes=gathered,
            activation_bytes=activations * pipeline_buffers(rows.on, columns.pp),
            transient_bytes=working,
            **states,
        ),
        policy=StatePolicy(
            precision=rows.policy, moments=rows.job.moments, offload=columns.offload
        ),
        process=Process(
            device=rows.on.device,
            ranks=columns.gpus,
            fully_shard=rows.on.framework.fully_shard,
            footprint=rows.on.framework.footprint if footprint is None else footprint,
        ),
        parallel=rows.parallel,
        micro_batches=rows.micro_batches,
    )
    return pieces.secured


def _entered(columns: Columns, micro_batches: Array) -> Array:
    """Micro-batches of the first stage on a first rank that meets its last stage."""
    both_ways = np.minimum(columns.pp, micro_batches) // 2
    in_v = np.minimum(2 * columns.pp - 1, micro_batches)
    return np.where(columns.in_v, in_v, both_ways)


def _own_chunk(alive: Array, columns: Columns, *, is_last: bool) -> Array:
    """Of the pairs alive on a rank, those of its first (or last) chunk."""
    pp, v = columns.pp, columns.virtual_stages
    rounds, rest = np.divmod(alive, pp * v)
    chunk = v - 1 if is_last else 0
    own = rounds * pp + np.clip(rest - chunk * pp, 0, pp)
    return np.where(v > 1, own, alive)
