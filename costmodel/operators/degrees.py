"""`Degrees`: how a block is split over ranks, and the tokens that a rank then has.

Where experts lie, and how many rows come to them.

The ranks of a stage, tp · cp · dp of them, are folded once more as edp · ep · etp, etp
fastest (Megatron-Core's parallel folding, Liu et al., 2025): each of ep groups of ranks
holds experts / ep whole experts, cut in width over etp ranks, and edp replicas hold the
same. Every rank sends each of its tokens to `routed` experts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from profiles.arrays import Array
from profiles.models import Block, Operator

if TYPE_CHECKING:
    from costmodel.layout import ModuleSharding


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


def rows_of(operator: Operator, degrees: Degrees, *, split: bool) -> Array:
    """Rows that *operator* has on a rank: as many as token positions, or a share."""
    return scaled(tokens(degrees, split=split), operator.rows)


def scaled(count: Array, share: float) -> Array:
    """*share* of a *count*, to the next whole number."""
    return count if share == 1 else np.rint(np.asarray(count) * share)


def sent_rows(block: Block, degrees: Degrees) -> Array:
    """Rows that a rank sends to experts, on average as many as it gets from others.

    Experts of a fixed capacity get that much of each sequence, or of a rank's part of
    it, whatever the router says.
    """
    own = tokens(degrees, split=degrees.sequence_parallel)
    routed = np.asarray(own * block.extents["routed"])
    if block.capacity is None:
        return routed
    part, every = own // degrees.micro_batch, block.extents["experts"]
    mean = block.extents["routed"] * part / every
    taken = np.minimum(np.ceil(block.capacity * mean), part)
    return np.asarray(degrees.micro_batch * every * taken)


def routed_rows(block: Block, degrees: Degrees) -> Array:
    """Rows that the experts of the busiest rank work on.

    The etp ranks that share experts work on the rows of all of them; tp ranks have the
    same ones, unless the sequence is split over them.
    """
    alike = 1 if degrees.sequence_parallel else degrees.tp
    shared = np.maximum(degrees.etp // alike, 1)
    return sent_rows(block, degrees) * shared * load(block, degrees)


def rows_a_token(block: Block, degrees: Degrees) -> Array:
    """Rows of the busiest rank's experts for each of its own tokens."""
    own = tokens(degrees, split=degrees.sequence_parallel)
    return np.asarray(sent_rows(block, degrees) * load(block, degrees) / own)


def load(block: Block, degrees: Degrees) -> Array:
    """Rows of the busiest rank over the mean.

    It holds the busiest expert, with `imbalance` times the mean; all other experts are
    alike: (x + (n - 1)(E - x) / (E - 1)) / n with n of E experts on the rank. One rank
    with all experts has the mean. Experts of a fixed capacity all take as much.
    """
    held = held_experts(block, degrees)
    if block.capacity is not None:
        return np.ones(np.shape(held))
    every, busiest = block.extents["experts"], degrees.imbalance
    others = (every - busiest) / np.maximum(every - 1, 1)
    return np.asarray((busiest + (held - 1) * others) / held)


def held_experts(block: Block, degrees: Degrees) -> Array:
    """Experts that a rank holds."""
    return np.asarray(-(-block.extents["experts"] // degrees.ep))


def held_width(width: Any, degrees: Degrees) -> Array:
    """What of an expert's width a rank holds."""
    return np.asarray(-(-width // degrees.etp))
