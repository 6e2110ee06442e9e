"""Chimera: two pipelines in opposite directions over the same ranks.

Rank r holds stage r of copy 0 and stage pp − 1 − r of copy 1; each copy trains half of
the micro-batches (Li and Hoefler, SC 2021). The order is what a list scheduler does
that counts every pass as one slot: at each slot a rank takes the oldest backward that
is ready, else the oldest forward, as long as it holds fewer than min(pp − s, pp/2)
micro-batches of stage s. With pp micro-batches or a multiple that takes the paper's
2m + pp − 2 slots, and holds its pp/2 + 1 to pp micro-batches in flight.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from costmodel.schedule.action import IntArray, Kind, Shape


def chimera(rank: int, shape: Shape) -> IntArray:
    """The stream of one rank; all are found together."""
    return _streams(shape)[rank]


@lru_cache(maxsize=4)
def _streams(shape: Shape) -> tuple[IntArray, ...]:
    pp, half = shape.pp, shape.micro_batches // 2
    kinds = (Kind.B, Kind.F)  # in the order in which they are chosen
    # The slot after each pass, micro-batch by micro-batch, by kind, copy and stage.
    done: dict[tuple[Kind, int, int], list[int]] = {
        (kind, copy, stage): []
        for kind in kinds
        for copy in range(2)
        for stage in range(pp)
    }

    def next_of(kind: Kind, copy: int, stage: int, slot: int) -> int | None:
        """The micro-batch whose pass can start at *slot*, counted in its copy."""
        forwards, backwards = done[Kind.F, copy, stage], done[Kind.B, copy, stage]
        if kind is Kind.B:
            number, after = len(backwards), (Kind.B, copy, stage + 1)
            awaited = forwards if stage == pp - 1 else done[after]
        else:
            number = len(forwards)
            if number == half or number - len(backwards) >= min(pp - stage, pp // 2):
                return None
            if stage == 0:
                return number
            awaited = done[Kind.F, copy, stage - 1]
        return number if number < len(awaited) and awaited[number] <= slot else None

    codes: list[list[int]] = [[] for _ in range(pp)]
    slot = 0
    while sum(map(len, codes)) < 2 * pp * shape.micro_batches:
        chosen = []
        for rank in range(pp):
            ready = [
                (order, number, copy, stage)
                for order, kind in enumerate(kinds)
                for copy, stage in enumerate((rank, pp - 1 - rank))
                if (number := next_of(kind, copy, stage, slot)) is not None
            ]
            chosen += [(rank, min(ready))] if ready else []
        slot += 1
        for rank, (order, number, copy, stage) in chosen:
            done[kinds[order], copy, stage].append(slot)
            place = copy * shape.stages + stage
            code = shape.code(kinds[order], place, copy * half + number)
            codes[rank].append(code)
    return tuple(map(np.array, codes))
