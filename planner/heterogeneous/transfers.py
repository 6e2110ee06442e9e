"""What is sent between the stages of a menu: activations on the way, tied gradients.

    to the next stage and back   a micro-batch's activations        → with_links
    between the pipeline's ends  the gradient of a tied parameter   → ends_s

Either is the least for what is known of a stage alone: the other side may be slower.

Ends of a pipeline over several places, by what summing a tied gradient costs them.

The smaller tp of the first and the last stage and the larger of the two set the time
(`stage_links.ends_s`): a *box* is all stages of so large a tp, or larger, on so many
devices, or fewer. Stages in a box take its cost or less; ends that cost less have a box
of their own. Costs that hardly differ are one, the least of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np

from costmodel.layout import Layout
from costmodel.machine import Machine
from costmodel.stages import Sender, boundary, machines_of, sends, tied_sync
from planner.heterogeneous.candidates import Option, Ways
from planner.heterogeneous.partition import EXACT
from planner.problem import Place, Problem

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


class _Sent(NamedTuple):
    """Seconds of what one layout sends, as `Ways` has them."""

    sent_s: float
    away_s: float
    crossed_s: float
    arrived_s: float


def with_links(
    options: Sequence[Option],
    layouts: Sequence[Layout],
    problem: Problem,
    here: Place,
    *,
    before: Place | None,
    after: Place | None,
) -> list[Option]:
    """*options* of stages at a place with what their sends take there, to the place
    after it and from the one before; for options of one size the least of all."""
    each: dict[object, _Sent] = {}  # layouts that differ in recompute send alike
    for one in layouts:
        if _sending_key(one) not in each:
            each[_sending_key(one)] = _ways_s(one, problem, here, before, after)
    ways = [each[_sending_key(one)] for one in layouts]
    least: dict[int, _Sent] = {}
    for option, way in zip(options, ways, strict=True):
        known = least.setdefault(option.devices, way)
        pairs = zip(known, way, strict=True)
        least[option.devices] = _Sent(*(min(pair) for pair in pairs))
    domain = here.machine.island.domain
    small = [way.away_s - way.sent_s for size, way in least.items() if size < domain]
    far_s = min(small, default=0.0)  # of whichever stage leaves its domain
    return [
        replace(
            option,
            ways=Ways(
                **least[option.devices]._asdict(),
                far_s=far_s if option.devices < domain else 0.0,
                domain=float(domain),
            ),
        )
        for option in options
    ]


def _sending_key(layout: Layout) -> tuple[object, ...]:
    """What `_sent_s` asks of a layout, a layer a stage."""
    stage = layout.stages[0]
    mesh, split = stage.mesh, stage.plans[0].sharding
    return mesh.tp, mesh.cp, mesh.size, layout.micro_batch(stage), split


def _ways_s(
    layout: Layout,
    problem: Problem,
    here: Place,
    before: Place | None,
    after: Place | None,
) -> _Sent:
    """There and back: inside the place and how much longer to another domain of it,
    to the place after it, from the one before."""
    near_s, far_s = (
        _sent_s(layout, problem, here.machine, far=far) for far in (False, True)
    )
    if layout.stages[0].mesh.size >= here.machine.island.domain:
        near_s = far_s
    beyond = [
        _sent_s(layout, problem, _meeting(problem, here, one), far=True) if one else 0.0
        for one in (after, before)
    ]
    return _Sent(near_s, max(far_s, near_s), *beyond)


def ends_s(
    shapes: Sequence[tuple[int, int]], menu: Layout, problem: Problem, *ends: Place
) -> list[float]:
    """Seconds in which the tied gradient is summed between the two *ends*, for each
    smaller tp and larger size of the stages there; *menu* is a layout of the menu."""
    tp, size = np.array(shapes).T
    found = tied_sync(
        problem.job,
        _meeting(problem, *ends),
        menu.precision,
        tp=tp,
        pp=np.full_like(tp, 2),
        stride=size,
        inside=np.zeros(len(tp), dtype=bool),
    )
    return np.broadcast_to(found.seconds, tp.shape).tolist()  # type: ignore[no-any-return]


def _meeting(problem: Problem, one: Place, two: Place) -> Machine:
    """What stages at two places have in common, as `costmodel.stages.pipeline_p2p`
    sees it."""
    return machines_of(problem.machine, [one.ranks, two.ranks])[0]


def _sent_s(layout: Layout, problem: Problem, where: Machine, *, far: bool) -> float:
    sender = Sender.of(layout, layout.stages[0])
    sent = boundary(problem.job, where, layout.precision, sender, far=np.asarray(far))
    return 2 * float(sends(sent.seconds, where).beside_s)
