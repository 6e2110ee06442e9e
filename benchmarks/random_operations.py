"""Operators of random shapes that a profile has not seen, between those that it has."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, log, prod

from profiles.measure.timing.operands import flops, held_bytes
from profiles.measure.timing.tasks import FORWARD, PRODUCTS, Operation

# Every other one is a product; the rest are spread over what else layers are made of.
OTHERS = (
    "attention",
    "layernorm",
    "rmsnorm",
    "gelu",
    "swiglu",
    "residual",
    "cross-entropy",
)
STEP = 8  # elements: products of whole 16-byte rows of a 16-bit format
TRIES = 10_000


def unseen(
    seen: Sequence[Operation],
    count: int,
    *,
    most_bytes: float,
    most_flops: float,
    seed: int = 0,
) -> list[tuple[Operation, ...]]:
    """*count* random operators, each as all of its passes.

    Each dimension lies between the least and the largest of the kind in *seen*, evenly
    in its logarithm; heads and head sizes are among the seen ones, since a model's are.
    """
    chance, known = random.Random(seed), {(one.kind, one.shape) for one in seen}
    kinds = [kind for kind in OTHERS if any(one.kind == kind for one in seen)]
    found: list[tuple[Operation, ...]] = []
    for _ in range(TRIES):
        if len(found) == count:
            break
        kind = "matmul" if len(found) % 2 == 0 else chance.choice(kinds)
        alike = [one for one in seen if one.kind == kind]
        like = chance.choice([one for one in alike if one.direction == FORWARD])
        shape = _shape(kind, like, [one.shape for one in alike], chance)
        drawn = replace(like, shape=shape)
        if (kind, shape) in known or not _fits(drawn, alike, most_bytes, most_flops):
            continue
        known.add((kind, shape))
        found.append(tuple(_passes(drawn, alike)))
    return found


def _shape(
    kind: str,
    like: Operation,
    shapes: Sequence[tuple[int, ...]],
    chance: random.Random,
) -> tuple[int, ...]:
    drawn = tuple(_between(sizes, chance) for sizes in zip(*shapes, strict=True))
    if kind == "attention":  # batch, heads, key-value heads, sequence, head size
        _, heads, kv_heads, _, head_dim = like.shape
        return drawn[0], heads, kv_heads, drawn[3], head_dim
    return drawn


def _between(sizes: Sequence[int], chance: random.Random) -> int:
    low, high = min(sizes), max(sizes)
    size = exp(chance.uniform(log(low), log(high)))
    step = STEP if low >= STEP else 1
    return max(round(size / step) * step, low)


def _fits(
    drawn: Operation, alike: Sequence[Operation], most_bytes: float, most_flops: float
) -> bool:
    """Whether its work too lies between that of the seen ones: no corner where every
    dimension is the least or the largest at once."""
    work = [prod(one.shape) for one in alike]
    inside = min(work) <= prod(drawn.shape) <= max(work)
    return inside and held_bytes(drawn) < most_bytes and flops(drawn) < most_flops


def _passes(drawn: Operation, alike: Sequence[Operation]) -> Iterator[Operation]:
    directions = {one.direction for one in alike}
    if drawn.kind in PRODUCTS:
        directions &= {FORWARD, "backward-input", "backward-weight"}
    for direction in sorted(directions, key=lambda name: (name != FORWARD, name)):
        yield replace(drawn, direction=direction)
