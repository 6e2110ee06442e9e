"""Experts of a pass: which of them its tokens meet, and what they send.

Every tp rank of a replica has the replica's tokens. Experts are cut in width over tp
(ep = 1), or lie whole on ep ranks: those of one replica, or of several that share them.

    ep = 1, tp     partial sums of the replica's tokens, all-reduced over tp
    ep = tp · d    d replicas' tokens, each rank of tp those of a share: rows there and
                   back all-to-all over ep, then gathered over tp

Of E experts n tokens meet E (1 − (1 − k/E)^n) on average, chosen evenly: few tokens
read few experts' weights, and all of them are there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodel.inference.decode_kernels import exchanged
from costmodel.machine import Machine, Sourced
from costmodel.operators import Degrees, held_experts, load, tokens
from profiles.arrays import Array
from profiles.hardware import Precision
from profiles.models import Block

_NOTHING = Sourced(seconds=np.zeros(()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """What a rank's experts do in a pass: `experts` of them have `rows` each."""

    experts: Array
    rows: Array


def replicas_together(degrees: Degrees) -> Array:
    """Replicas that share experts."""
    return np.asarray(np.maximum(degrees.ep // degrees.tp, 1))


def met(block: Block, degrees: Degrees) -> Met:
    """The experts of the busiest rank that a pass meets, and the rows of each."""
    every, chosen = block.extents["experts"], block.extents["routed"]
    seen = tokens(degrees, split=False) * replicas_together(degrees)
    held = held_experts(block, degrees)
    share = chosen / every
    experts = held * -np.expm1(seen * np.log1p(-min(share, 1 - 1e-12)))
    experts = np.maximum(experts, np.minimum(chosen / degrees.ep, held))
    rows = seen * share * held * load(block, degrees)
    return Met(experts=experts, rows=rows / experts)


def routed_degrees(degrees: Degrees) -> Degrees:
    """Degrees under which `sharding` counts as many routed rows as a rank has: where
    experts lie on several ranks, each of tp sends a share of the tokens."""
    if int(degrees.ep) == 1:
        return degrees
    seen = int(tokens(degrees, split=False))
    one = np.ones_like(degrees.micro_batch)
    return replace(degrees, micro_batch=one, seq_len=seen, sequence_parallel=True)


def dispatched(
    block: Block, degrees: Degrees, precision: Precision, machine: Machine
) -> Sourced:
    """Seconds of sending rows to the ranks of their experts; nothing inside a replica,
    whose ranks have its tokens."""
    if int(replicas_together(degrees)) == 1:
        return _NOTHING
    own = -(-tokens(degrees, split=False) // degrees.tp)
    width = block.extents["hidden"] * precision.activation.bytes
    size = own * block.extents["routed"] * width * load(block, degrees)
    return exchanged("all_to_all", size, degrees.ep, machine)


def combined(
    block: Block,
    degrees: Degrees,
    precision: Precision,
    machine: Machine,
    *,
    summed: bool,
) -> Sourced:
    """Seconds of bringing rows back and of every tp rank having the sums; where shared
    experts' are *summed* anyway, partial sums go with them."""
    width = block.extents["hidden"] * precision.activation.bytes
    size = np.asarray(tokens(degrees, split=False) * width)
    several = int(replicas_together(degrees)) > 1
    if not several and summed:
        return _NOTHING
    kind = "all_gather" if several else "all_reduce"
    everywhere = exchanged(kind, size, degrees.tp, machine)
    return everywhere + dispatched(block, degrees, precision, machine)
