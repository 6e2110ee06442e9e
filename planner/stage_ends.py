"""Ends of a pipeline over several places, by what summing a tied gradient costs them.

The smaller tp of the first and the last stage and the larger of the two set the time
(`stage_links.ends_s`): a *box* is all stages of so large a tp, or larger, on so many
devices, or fewer. Stages in a box take its cost or less; ends that cost less have a box
of their own. Costs that hardly differ are one, the least of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from math import inf

from costmodel.layout import Layout
from planner.stage_partition import EXACT

Box = tuple[int, int]  # the least tp, and the most devices


def shape_of(layout: Layout) -> Box:
    """tp and devices of the stages of a menu's *layout*."""
    mesh = layout.stages[0].mesh
    return mesh.tp, mesh.size


def of_both(one: Box, two: Box) -> Box:
    """What sets the time of two ends.

    >>> of_both((2, 8), (4, 4))
    (2, 8)
    """
    return min(one[0], two[0]), max(one[1], two[1])


def boxes(first: Collection[Box], last: Collection[Box]) -> list[Box]:
    """Those of all pairs of ends."""
    return sorted({of_both(*pair) for pair in product(first, last)})


def lies_in(shape: Box, several: Sequence[Box]) -> bool:
    """Whether a stage of that shape is in any of the boxes."""
    return any(shape[0] >= tp and shape[1] <= size for tp, size in several)


def together(
    costs: Mapping[Box, float], close_s: float
) -> Iterator[tuple[list[Box], float]]:
    """Boxes whose *costs* are as close as that, with the least cost of them; but for
    boxes in another one that costs no more.

    >>> list(together({(1, 8): 9.0, (2, 4): 1.5, (2, 8): 5.5, (4, 8): 1.0}, 1.0))
    [([(4, 8), (2, 4)], 1.0), ([(2, 8)], 5.5), ([(1, 8)], 9.0)]
    """
    several, least_s = list[Box](), inf
    for box in sorted(_largest(costs), key=lambda box: costs[box]):
        if costs[box] > least_s + close_s:
            yield several, least_s
            several, least_s = [], inf
        several.append(box)
        least_s = min(least_s, costs[box])
    if several:
        yield several, least_s


def _largest(costs: Mapping[Box, float]) -> list[Box]:
    return [
        box
        for box, cost_s in costs.items()
        if not any(
            around != box and lies_in(box, [around]) and other_s <= cost_s * (1 + EXACT)
            for around, other_s in costs.items()
        )
    ]
