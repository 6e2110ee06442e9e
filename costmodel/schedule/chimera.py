"""Chimera: two pipelines in opposite directions over the same ranks.

Rank r holds stage r of copy 0 and stage pp − 1 − r of copy 1; each copy trains half of
the micro-batches (Li and Hoefler, SC 2021). The order is what a list scheduler does
that counts every pass as one slot: at each slot a rank takes the oldest backward that
is ready, else the oldest forward, as long as it holds fewer than min(pp − s, pp/2)
micro-batches of stage s. With pp micro-batches or a multiple that takes the paper's
2m + pp − 2 slots, and holds its pp/2 + 1 to pp micro-batches in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from costmodel.schedule.action import Kind
from costmodel.schedule.encoding import IntArray, Shape

_Candidate = tuple[int, int, int]  # 0 backward or 1 forward; micro-batch; copy


def chimera(rank: int, shape: Shape) -> IntArray:
    """The stream of one rank; all are found together."""
    return _streams(shape)[rank]


@lru_cache(maxsize=4)
def _streams(shape: Shape) -> tuple[IntArray, ...]:
    board = _Board(shape=shape)
    slot = 0
    while board.left:
        chosen = [board.choose(rank, slot) for rank in range(shape.pp)]
        for rank, candidate in enumerate(chosen):
            if candidate is not None:
                board.take(rank, slot, candidate)
        slot += 1
    return tuple(np.array(codes) for codes in board.codes)


@dataclass(kw_only=True)
class _Board:
    """What is done, slot by slot: the slot after each pass, by (copy, stage)."""

    shape: Shape
    left: int = field(init=False)
    codes: list[list[int]] = field(init=False)
    forward: list[list[list[int]]] = field(init=False)
    backward: list[list[list[int]]] = field(init=False)

    def __post_init__(self) -> None:
        pp = self.shape.pp
        self.left = 2 * pp * self.shape.micro_batches
        self.codes = [[] for _ in range(pp)]
        self.forward = [[[] for _ in range(pp)] for _ in range(2)]
        self.backward = [[[] for _ in range(pp)] for _ in range(2)]

    def choose(self, rank: int, slot: int) -> _Candidate | None:
        """What *rank* does in *slot*: the oldest backward, else the oldest forward."""
        found: list[_Candidate] = []
        for copy in range(2):
            stage = self._stage(rank, copy)
            for kind, ready in ((0, self._returns), (1, self._enters)):
                number = ready(copy, stage, slot)
                if number is not None:
                    found.append((kind, number, copy))
        return min(found, default=None)

    def take(self, rank: int, slot: int, candidate: _Candidate) -> None:
        kind, number, copy = candidate
        stage = self._stage(rank, copy)
        done = (self.backward, self.forward)[kind]
        done[copy][stage].append(slot + 1)
        where = copy * self.shape.stages + stage
        micro_batch = copy * self._half + number
        spelled = (Kind.B, Kind.F)[kind]
        self.codes[rank].append(self.shape.code(spelled, where, micro_batch))
        self.left -= 1

    @property
    def _half(self) -> int:
        return self.shape.micro_batches // 2

    def _stage(self, rank: int, copy: int) -> int:
        return rank if copy == 0 else self.shape.pp - 1 - rank

    def _returns(self, copy: int, stage: int, slot: int) -> int | None:
        """The micro-batch whose backward is ready at *slot*, counted in its copy."""
        number = len(self.backward[copy][stage])
        last = stage == self.shape.pp - 1
        before = self.forward[copy][stage] if last else self.backward[copy][stage + 1]
        return number if number < len(before) and before[number] <= slot else None

    def _enters(self, copy: int, stage: int, slot: int) -> int | None:
        """The same of a forward, if there is room for it."""
        number, pp = len(self.forward[copy][stage]), self.shape.pp
        room = min(pp - stage, pp // 2)
        if number >= self._half or number - len(self.backward[copy][stage]) >= room:
            return None
        if stage == 0:
            return number
        before = self.forward[copy][stage - 1]
        return number if number < len(before) and before[number] <= slot else None
