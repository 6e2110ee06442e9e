"""Pipeline schedules: which rank runs which forward and backward, in which order.

Each schedule is one generator below, of one rank's stream; the streams depend only on
(schedule, pp, virtual_stages, micro_batches). An action is coded as one integer, so
that a pipeline of 65,536 passes is built in milliseconds; `streams` spells them out.

    gpipe         all forwards, then all backwards (Huang et al., NeurIPS 2019)
    1f1b          fill, alternate, drain (PipeDream-Flush, Narayanan et al., ICML 2021)
    interleaved   1f1b over several chunks a rank, pp micro-batches at a time
                  (Narayanan et al., SC 2021, section 2.2; Megatron-LM's order)

With one rank every schedule is gradient accumulation: F0 B0 F1 B1 …
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.action import Action, Kind, Stream
from profiles.errors import InvalidSpec, UnknownName, Unsupported

IntArray = NDArray[np.int64]
COMPUTE: Final = (Kind.F, Kind.B, Kind.I, Kind.W)  # a code's first digit


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a pipeline, and the integers that stand for its actions."""

    pp: int
    virtual_stages: int
    micro_batches: int

    @property
    def stages(self) -> int:
        return self.pp * self.virtual_stages

    def code(self, kind: Kind, stage: Any, micro_batch: Any) -> Any:
        """(kind, stage, micro-batch) as one integer; broadcasts."""
        row = COMPUTE.index(kind) * self.stages + stage
        return row * self.micro_batches + micro_batch

    def action(self, code: int) -> Action:
        """The action that a code stands for."""
        row, micro_batch = divmod(code, self.micro_batches)
        kind, stage = divmod(row, self.stages)
        return Action(kind=COMPUTE[kind], stage=stage, micro_batch=micro_batch)


def gpipe(rank: int, shape: Shape) -> IntArray:
    """Fill with everything, then drain: `0F0 0F1 0F2 0B0 0B1 0B2`."""
    micro_batch = np.arange(shape.micro_batches)
    forwards = shape.code(Kind.F, rank, micro_batch)
    backwards = shape.code(Kind.B, rank, micro_batch)
    return _fill_alternate_drain(forwards, backwards, ahead=shape.micro_batches)


def one_f_one_b(rank: int, shape: Shape) -> IntArray:
    """As far ahead as there are stages behind: `0F0 0F1 0B0 0F2 0B1 0B2` (0 of 2)."""
    micro_batch = np.arange(shape.micro_batches)
    forwards = shape.code(Kind.F, rank, micro_batch)
    backwards = shape.code(Kind.B, rank, micro_batch)
    return _fill_alternate_drain(forwards, backwards, ahead=shape.pp - 1 - rank)


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


def accumulation(rank: int, shape: Shape) -> IntArray:
    """Without a pipeline: `0F0 0B0 0F1 0B1`."""
    return one_f_one_b(rank, shape)


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


SCHEDULES: Final[dict[str, Callable[[int, Shape], IntArray]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
}
NOT_YET: Final = ("zb-h1", "zb-v", "dualpipe-v", "chimera")


def require_schedule(
    schedule: str, pp: int, virtual_stages: int, micro_batches: int
) -> None:
    """Raise if *schedule* cannot run with these numbers.

    Raises UnknownName, Unsupported (known, not carried out) or InvalidSpec.
    """
    _require_stages(schedule, pp, virtual_stages)
    if micro_batches < 1:
        raise InvalidSpec(f"micro_batches={micro_batches}; a step needs at least one")
    if schedule == "interleaved" and micro_batches % pp:
        raise InvalidSpec(
            f"interleaved with micro_batches={micro_batches} on pp={pp}: the "
            "micro-batches must be a multiple of pp; choose "
            f"{' or '.join(map(str, _multiples_around(micro_batches, pp)))}, "
            "or the schedule 1f1b"
        )


def _require_stages(schedule: str, pp: int, virtual_stages: int) -> None:
    if schedule in NOT_YET:
        raise Unsupported(
            f"schedule {schedule} is known but not carried out; "
            f"choose one of {', '.join(SCHEDULES)}"
        )
    if schedule not in SCHEDULES:
        raise UnknownName("schedule", schedule, (*SCHEDULES, *NOT_YET))
    if pp < 1 or virtual_stages < 1:
        raise InvalidSpec(
            f"pp={pp} with virtual_stages={virtual_stages}; both must be at least 1"
        )
    if schedule == "interleaved" and (pp < 2 or virtual_stages < 2):
        raise InvalidSpec(
            f"interleaved with pp={pp} and virtual_stages={virtual_stages}; it needs "
            "pp >= 2 and virtual_stages >= 2: raise them or choose the schedule 1f1b"
        )
    if schedule != "interleaved" and virtual_stages != 1:
        raise InvalidSpec(
            f"{schedule} with virtual_stages={virtual_stages}; it has one stage a "
            "rank: use virtual_stages=1 or the schedule interleaved"
        )


def _multiples_around(number: int, divisor: int) -> list[int]:
    below = number // divisor * divisor
    return [multiple for multiple in (below, below + divisor) if multiple]


def holders(schedule: str, pp: int, virtual_stages: int) -> tuple[int, ...]:
    """The pipeline rank that holds each virtual stage, in model order.

    >>> holders("interleaved", 2, 3)
    (0, 1, 0, 1, 0, 1)
    """
    _require_stages(schedule, pp, virtual_stages)
    return tuple(stage % pp for stage in range(pp * virtual_stages))


def codes(schedule: str, shape: Shape) -> IntArray:
    """Every rank's stream in integer codes, one row a rank.

    Raises as `require_schedule`.
    """
    require_schedule(schedule, shape.pp, shape.virtual_stages, shape.micro_batches)
    order = SCHEDULES[schedule] if shape.pp > 1 else accumulation
    return np.stack([order(rank, shape) for rank in range(shape.pp)])


@lru_cache(maxsize=16)
def streams(
    schedule: str, pp: int, virtual_stages: int, micro_batches: int
) -> tuple[Stream, ...]:
    """The forwards and backwards of each pipeline rank, in order.

    >>> [" ".join(map(str, stream)) for stream in streams("1f1b", 2, 1, 3)]
    ['0F0 0F1 0B0 0F2 0B1 0B2', '1F0 1B0 1F1 1B1 1F2 1B2']

    Raises as `require_schedule`.
    """
    shape = Shape(pp=pp, virtual_stages=virtual_stages, micro_batches=micro_batches)
    rows = codes(schedule, shape).tolist()
    return tuple(tuple(map(shape.action, row)) for row in rows)
