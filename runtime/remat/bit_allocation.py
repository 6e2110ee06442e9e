"""In how many bits each saved tensor is kept, by what its rounding does to gradients.

    minimise    Σ c_l · f(b_l)        f(b) = 1/(2^b − 1)²: the variance of rounding
    subject to  Σ n_l · b_l ≤ total   to b bits, in units of that to one  → allocated
    c_l         from gradients with l in one bit, twice, and in eight     → sensitivity

After GACT (Liu et al., ICML 2022; gact/autoprec.py). The program is solved exactly: of
all ways to give bits to the first tensors only those stay of which no other has less
variance in no more bits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

CHOICES: Final = (1, 2, 4, 8)
EXACT_BITS: Final = 8  # of the gradients that others are compared with
MOST_WAYS: Final = 50_000  # beyond them bits are counted in thousandths of the total

Key = TypeVar("Key", bound=Hashable)


def variance(bits: int) -> float:
    """Of rounding to *bits*, in units of that to one.

    >>> variance(1), round(1 / variance(2))
    (1.0, 9)
    """
    return float((2**bits - 1) ** -2)


def sensitivity(once: float, first: float, second: float) -> float:
    """Of a tensor, from squared distances between gradients: of two roundings to one
    bit, *once*; and of either and the one in eight bits."""
    return max(once, 2 * max(first, second))


def allocated(
    sizes: Mapping[Key, int],
    sensitivities: Mapping[Key, float],
    total_bits: float,
) -> dict[Key, int]:
    """The bits of each tensor. Where not even one bit each fits, one bit each."""
    ways: list[tuple[float, float, tuple[int, ...]]] = [(0.0, 0.0, ())]
    left = float(sum(sizes.values()))  # one bit each of the tensors to come
    for key, size in sizes.items():
        left -= size
        room = total_bits - left
        longer = [
            (
                used + size * bits,
                cost + sensitivities[key] * variance(bits),
                (*to, bits),
            )
            for used, cost, to in ways
            for bits in CHOICES
            if bits == CHOICES[0] or used + size * bits <= room
        ]
        ways = _undominated(longer, total_bits)
    _, _, best = min(ways, key=lambda way: (way[1], way[0]))
    return dict(zip(sizes, best, strict=True))


def _undominated(
    ways: list[tuple[float, float, tuple[int, ...]]], total_bits: float
) -> list[tuple[float, float, tuple[int, ...]]]:
    """Those of which no other costs less in no more bits; where they are many, one for
    each thousandth of the total."""
    ways.sort(key=lambda way: (way[0], way[1]))
    found, least = [], float("inf")
    for way in ways:
        if way[1] < least:
            found.append(way)
            least = way[1]
    if len(found) <= MOST_WAYS:
        return found
    cells = {
        int(1000 * used / total_bits): (used, cost, to) for used, cost, to in found
    }
    return list(cells.values())
