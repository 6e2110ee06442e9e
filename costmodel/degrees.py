"""`Degrees`: how a block is split over ranks, and the tokens that a rank then has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from costmodel.module_sharding import ModuleSharding

Array = NDArray[Any]


def _one() -> Array:
    return np.ones((), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How a block is split; the integer arrays broadcast against each other.

    `imbalance` is how many times the mean the busiest expert's rows are. Operators that
    `modules` name are split over tp as those say, the others by `sharding`'s rules.
    """

    tp: Array
    cp: Array
    micro_batch: Array
    seq_len: int
    sequence_parallel: bool
    cp_kind: str = "ring"
    flash_attention: bool = True
    ep: Array = field(default_factory=_one)
    etp: Array = field(default_factory=_one)
    imbalance: float = 1.0
    modules: tuple[ModuleSharding, ...] = ()


def tokens(degrees: Degrees, *, split: bool) -> Array:
    """Token positions a rank has: of a tensor split over tp too, or not."""
    share = degrees.cp * degrees.tp if split else degrees.cp
    return np.asarray(degrees.micro_batch * -(-degrees.seq_len // share))
