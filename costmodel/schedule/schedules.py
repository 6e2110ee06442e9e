"""Pipeline schedules: which rank runs which forward and backward, in which order.

Each schedule is one generator of one rank's stream; the streams depend only on
(schedule, pp, virtual_stages, micro_batches). `codes` are their actions as integers;
`streams` spells them out.

    gpipe           all forwards, then all backwards (Huang et al., NeurIPS 2019)
    1f1b            fill, alternate, drain (PipeDream-Flush, Narayanan et al., 2021)
    interleaved     1f1b over several chunks a rank, pp micro-batches at a time
                    (Narayanan et al., SC 2021, section 2.2; Megatron-LM's order)
    zb-h1           `zero_bubble`
    zb-interleaved
    zb-v
    dualpipe-v
    chimera         `chimera`
    async-1f1b      `staleness`: without a flush; what a step is, `program` says
    2bw
    pipemare
    pb

With one rank every schedule is gradient accumulation: F0 B0 F1 B1 …
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from costmodel.schedule.action import NOTHING, Action, IntArray, Kind, Shape, Stream
from costmodel.schedule.chimera import chimera
from costmodel.schedule.staleness import Staleness
from costmodel.schedule.zero_bubble import dualpipe_v, zb_v, zero_bubble
from profiles.errors import InvalidSpec, UnknownName


def gpipe(rank: int, shape: Shape) -> IntArray:
    """Fill with everything, then drain: `0F0 0F1 0F2 0B0 0B1 0B2`."""
    return _one_chunk(rank, shape, ahead=shape.micro_batches)


def one_f_one_b(rank: int, shape: Shape) -> IntArray:
    """As far ahead as there are stages behind: `0F0 0F1 0B0 0F2 0B1 0B2` (0 of 2)."""
    return _one_chunk(rank, shape, ahead=shape.pp - 1 - rank)


def _one_chunk(rank: int, shape: Shape, *, ahead: int) -> IntArray:
    micro_batch = np.arange(shape.micro_batches)
    forwards = shape.code(Kind.F, rank, micro_batch)
    backwards = shape.code(Kind.B, rank, micro_batch)
    return _fill_alternate_drain(forwards, backwards, ahead=ahead)


def interleaved(rank: int, shape: Shape) -> IntArray:
    """Rounds of pp micro-batches through one chunk after another.

    Rank 0 of 2 with 2 chunks, 2 micro-batches:
    `0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1`.
    """
    passes = np.arange(shape.virtual_stages * shape.micro_batches)
    turn, place = np.divmod(passes, shape.pp)
    round_, chunk = np.divmod(turn, shape.virtual_stages)
    micro_batch = round_ * shape.pp + place
    last = shape.virtual_stages - 1
    forwards = shape.code(Kind.F, chunk * shape.pp + rank, micro_batch)
    backwards = shape.code(Kind.B, (last - chunk) * shape.pp + rank, micro_batch)
    ahead = last * shape.pp + 2 * (shape.pp - 1 - rank)
    return _fill_alternate_drain(forwards, backwards, ahead=ahead)


def _fill_alternate_drain(
    forwards: IntArray, backwards: IntArray, *, ahead: int
) -> IntArray:
    """*ahead* forwards, then a forward and a backward in turn, then the rest."""
    fill = min(ahead, len(forwards))
    alternate = 2 * len(forwards) - fill
    stream = np.empty(2 * len(forwards), dtype=np.int64)
    stream[:fill] = forwards[:fill]
    stream[fill:alternate:2] = forwards[fill:]
    stream[fill + 1 : alternate : 2] = backwards[: len(backwards) - fill]
    stream[alternate:] = backwards[len(backwards) - fill :]
    return stream


Counts = Any  # numbers, or arrays that broadcast


def _alive_one_chunk(rank: Counts, pp: Counts, chunks: Counts, batches: Counts) -> Any:
    return np.minimum(pp - rank, batches)


def _alive_in_turns(hop: int) -> Callable[[Counts, Counts, Counts, Counts], Any]:
    """Megatron's warm-up and one more, with *hop* passes for each rank behind."""

    def alive(rank: Counts, pp: Counts, chunks: Counts, batches: Counts) -> Any:
        warm_up = (chunks - 1) * pp + hop * (pp - 1 - rank)
        return np.minimum(warm_up + 1, chunks * batches)

    return alive


def _alive_zb_v(rank: Counts, pp: Counts, chunks: Counts, batches: Counts) -> Any:
    first = np.minimum(2 * pp - 1 - rank, batches)
    return first + np.minimum(rank + 1, batches)


def _alive_chimera(rank: Counts, pp: Counts, chunks: Counts, batches: Counts) -> Any:
    room = np.minimum(pp, batches) // 2
    return np.minimum(pp - rank, room) + np.minimum(rank + 1, room)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How a schedule orders its passes, and where it lays the stages.

    `in_flight` of (rank, pp, virtual stages, micro-batches) are the (chunk,
    micro-batch) pairs whose activations a rank has saved at its peak. `chunks` are the
    virtual stages that a rank may hold: 1, 2, or any from 2 on (None). `in_v`: the
    second chunk goes back up the ranks. `copies` of the model go through the ranks, the
    second one from their end. `splits` B into I and W. `stale`: it does not flush, and
    `order` is that of a run, of one step or of many.
    """

    order: Callable[[int, Shape], IntArray]
    in_flight: Callable[[Counts, Counts, Counts, Counts], Any]
    chunks: int | None = 1
    in_v: bool = False
    copies: int = 1
    splits: bool = False
    stale: Staleness | None = None


def _without_flush(stale: Staleness) -> Schedule:
    def order(rank: int, shape: Shape) -> IntArray:
        return _one_chunk(rank, shape, ahead=stale.ahead(rank, shape.pp))

    def in_flight(rank: Counts, pp: Counts, chunks: Counts, batches: Counts) -> Any:
        return stale.ahead(rank, pp) + 1

    return Schedule(order=order, in_flight=in_flight, stale=stale)


SCHEDULES: Final = {
    "gpipe": Schedule(
        order=gpipe,
        in_flight=lambda rank, pp, chunks, batches: np.where(pp > 1, batches, 1),
    ),
    "1f1b": Schedule(order=one_f_one_b, in_flight=_alive_one_chunk),
    "interleaved": Schedule(
        order=interleaved, in_flight=_alive_in_turns(2), chunks=None
    ),
    "zb-h1": Schedule(order=zero_bubble, in_flight=_alive_one_chunk, splits=True),
    "zb-interleaved": Schedule(
        order=zero_bubble, in_flight=_alive_in_turns(1), chunks=None, splits=True
    ),
    "zb-v": Schedule(
        order=zb_v, in_flight=_alive_zb_v, chunks=2, in_v=True, splits=True
    ),
    "dualpipe-v": Schedule(
        order=dualpipe_v,
        in_flight=lambda rank, pp, chunks, batches: 2 * pp + 1,
        chunks=2,
        in_v=True,
        splits=True,
    ),
    "chimera": Schedule(order=chimera, in_flight=_alive_chimera, copies=2),
    "async-1f1b": _without_flush(Staleness(hop=1, stashes=True)),
    "2bw": _without_flush(Staleness(hop=1, stashes=True, delay=1)),
    "pipemare": _without_flush(Staleness(hop=2, stashes=False)),
    "pb": _without_flush(Staleness(hop=2, stashes=False)),
}
FLUSHED: Final = tuple(name for name, one in SCHEDULES.items() if one.stale is None)


def flushes(name: str) -> bool:
    """Whether a step ends with an empty pipeline, as far as *name* is known.

    >>> flushes("1f1b"), flushes("2bw")
    (True, False)
    """
    return name not in SCHEDULES or name in FLUSHED


def peak_in_flight(
    schedule: str,
    rank: ArrayLike,
    pp: ArrayLike,
    virtual_stages: ArrayLike,
    micro_batches: ArrayLike,
) -> IntArray:
    """Saved (chunk, micro-batch) pairs at the peak of pipeline rank *rank*.

    What I leaves for W is not counted. Broadcasts, for one schedule at a time. Where
    the chunks of a rank save unequal bytes, the peak in bytes is `timeline`'s to find.
    Numbers that `require_schedule` refuses are not caught here.

    >>> int(peak_in_flight("1f1b", 0, 4, 1, 8))
    4
    >>> peak_in_flight("interleaved", np.arange(4), 4, 2, 8).tolist()
    [11, 9, 7, 5]

    Raises UnknownName.
    """
    sizes = [*map(np.asarray, (rank, pp, virtual_stages, micro_batches))]
    alive = schedule_called(schedule).in_flight(*sizes)
    return np.broadcast_to(alive, np.broadcast(*sizes).shape)


def versions_held(schedule: str, pp: int, micro_batches: int) -> IntArray:
    """Copies of its weights that each pipeline rank holds.

    >>> versions_held("async-1f1b", 4, 1).tolist(), versions_held("1f1b", 2, 1).tolist()
    ([4, 3, 2, 1], [1, 1])

    Raises UnknownName.
    """
    ranks, stale = np.arange(pp), schedule_called(schedule).stale
    if stale is None:
        return np.ones_like(ranks)
    return np.asarray(stale.versions(ranks, pp, micro_batches))


def schedule_called(name: str) -> Schedule:
    """What is known of the schedule *name*; raises UnknownName."""
    if name not in SCHEDULES:
        raise UnknownName("schedule", name, SCHEDULES)
    return SCHEDULES[name]


def least_chunks(name: str) -> int:
    """The fewest virtual stages of a rank; raises UnknownName.

    >>> [least_chunks(name) for name in ("1f1b", "interleaved", "zb-v")]
    [1, 2, 2]
    """
    return schedule_called(name).chunks or 2


def require_schedule(
    schedule: str, pp: int, virtual_stages: int, micro_batches: int
) -> None:
    """Raise if *schedule* cannot run with these numbers.

    Raises UnknownName or InvalidSpec.
    """
    _require_stages(schedule, pp, virtual_stages)
    if micro_batches < 1:
        raise InvalidSpec(f"micro_batches={micro_batches}; a step needs at least one")
    found = SCHEDULES[schedule]
    in_turns = found.chunks is None
    step = pp if in_turns else found.copies
    if micro_batches % step:
        below = micro_batches // step * step
        near = [str(one) for one in (below, below + step) if one]
        raise InvalidSpec(
            f"{schedule} with micro_batches={micro_batches} on pp={pp}: the "
            f"micro-batches must be a multiple of {'pp' if in_turns else step}; choose "
            f"{' or '.join(near)}, or the schedule 1f1b"
        )
    if schedule == "dualpipe-v" and micro_batches < 2 * pp:
        raise InvalidSpec(
            f"dualpipe-v with micro_batches={micro_batches} on pp={pp}: it needs at "
            f"least as many as stages; choose {2 * pp} or more, or the schedule zb-v"
        )
    late = found.stale
    if late is not None and late.delay is not None and micro_batches < pp:
        raise InvalidSpec(
            f"{schedule} with micro_batches={micro_batches} on pp={pp}: of fewer "
            "micro-batches than ranks the weights of one update before are not there "
            f"yet; choose {pp} or more, or the schedule async-1f1b"
        )


def _require_stages(schedule: str, pp: int, virtual_stages: int) -> None:
    found = schedule_called(schedule)
    if pp < 1 or virtual_stages < 1:
        raise InvalidSpec(
            f"pp={pp} with virtual_stages={virtual_stages}; both must be at least 1"
        )
    if found.chunks is None and (pp < 2 or virtual_stages < 2):
        raise InvalidSpec(
            f"{schedule} with pp={pp} and virtual_stages={virtual_stages}; it needs "
            "pp >= 2 and virtual_stages >= 2: raise them or choose the schedule 1f1b"
        )
    if found.chunks == 1 and virtual_stages != 1:
        raise InvalidSpec(
            f"{schedule} with virtual_stages={virtual_stages}; it has one stage a "
            "rank: use virtual_stages=1 or the schedule interleaved"
        )
    if found.chunks == 2 and (pp < 2 or virtual_stages != 2):
        raise InvalidSpec(
            f"{schedule} with pp={pp} and virtual_stages={virtual_stages}; it has two "
            "stages a rank and two ranks or more: use virtual_stages=2 and pp >= 2"
        )
    if found.stale is not None and pp < 2:
        raise InvalidSpec(
            f"{schedule} with pp={pp}; one rank has no pipeline to keep full: choose "
            "pp >= 2 or the schedule 1f1b"
        )
    if pp % found.copies:
        raise InvalidSpec(
            f"{schedule} with pp={pp}; its two copies meet in the middle: choose an "
            "even pp or the schedule 1f1b"
        )


def holders(schedule: str, pp: int, virtual_stages: int) -> tuple[int, ...]:
    """The pipeline rank that holds each virtual stage, in model order.

    Of the first copy, where there are two: `copies_held` has both.

    >>> holders("interleaved", 2, 3)
    (0, 1, 0, 1, 0, 1)
    >>> holders("zb-v", 3, 2)
    (0, 1, 2, 2, 1, 0)
    """
    _require_stages(schedule, pp, virtual_stages)
    stages = range(pp * virtual_stages)
    if schedule_called(schedule).in_v:
        return tuple(min(stage, 2 * pp - 1 - stage) for stage in stages)
    return tuple(stage % pp for stage in stages)


def copies_held(
    schedule: str, pp: int, virtual_stages: int
) -> tuple[tuple[int, ...], ...]:
    """The same of every copy of the model that the schedule has.

    >>> copies_held("chimera", 4, 1)
    ((0, 1, 2, 3), (3, 2, 1, 0))
    """
    first = holders(schedule, pp, virtual_stages)
    if schedule_called(schedule).copies == 1:
        return (first,)
    return first, tuple(pp - 1 - rank for rank in first)


def codes(
    schedule: str, pp: int, virtual_stages: int, micro_batches: int
) -> tuple[Shape, IntArray]:
    """The size of a pipeline, and every rank's stream in integer codes, one row a rank,
    filled up with NOTHING. Raises as `require_schedule`."""
    require_schedule(schedule, pp, virtual_stages, micro_batches)
    found = SCHEDULES[schedule]
    shape = Shape(
        pp=pp,
        virtual_stages=virtual_stages,
        micro_batches=micro_batches,
        copies=found.copies,
    )
    order = found.order if pp > 1 else one_f_one_b
    rows = [order(rank, shape) for rank in range(pp)]
    coded = np.full((pp, max(map(len, rows))), NOTHING)
    for filled, row in zip(coded, rows, strict=True):
        filled[: len(row)] = row
    return shape, coded


@lru_cache(maxsize=16)
def streams(
    schedule: str, pp: int, virtual_stages: int, micro_batches: int
) -> tuple[Stream, ...]:
    """The forwards and backwards of each pipeline rank, in order.

    >>> [" ".join(map(str, stream)) for stream in streams("1f1b", 2, 1, 3)]
    ['0F0 0F1 0B0 0F2 0B1 0B2', '1F0 1B0 1F1 1B1 1F2 1B2']

    Raises as `require_schedule`.
    """
    shape, rows = codes(schedule, pp, virtual_stages, micro_batches)
    return tuple(tuple(_spelled(row, shape)) for row in rows.tolist())


def _spelled(row: list[int], shape: Shape) -> Iterator[Action]:
    """Actions of codes; a forward and the backward that runs at once are one."""
    row = [code for code in row if code != NOTHING]
    for code, after in zip(row, [*row[1:], NOTHING], strict=True):
        action = shape.action(code)
        if shape.overlaps(code):
            continue
        if after != NOTHING and shape.overlaps(after):
            action = Action.overlap(action, shape.action(after))
        yield action
