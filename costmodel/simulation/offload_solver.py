"""What is made again and what is away, together: POFO's problem in a layout's words.

    minimise    seconds of what is made again + waits for copies
    subject to  Σ in flight × (kept − away) + largest working set + buffers  ≤  room
    waits       max(0, away / link − forward) + max(0, away / link − backward − again)
    buffers     min(2 × what leaves of the layer that keeps most, all that leaves)

POFO (Beaumont et al., NeurIPS 2021) keeps, makes again or offloads what each link of a
chain saves. A layout says it by layer: each takes an option of its menu, neighbours may
be joined, and of what a stage's layers keep one share α is on the host. With the
options fixed bytes are linear in α, which is solved for (Yuan et al., ATC 2024, section
4.2), and all pairs of options and counts are looked at: so no preset, no α alone and no
preset with an α is faster in the same room. Several groups (chunks, kinds of layers)
go by the best ratio along convex hulls, as in `retention_fit`; the last one that moves
is solved as if alone.

Each stage's link to the host, and which passes hide its copies.

What a micro-batch's passes hide is what they take; of backward the parameters that are
fetched from the host beside it come off first (`costmodel.stages.offload_cost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np

from costmodel.layout import Offload
from costmodel.machine import Machine
from costmodel.simulation.estimator import Estimate
from costmodel.simulation.remat_options import Option
from costmodel.simulation.remat_solver import (
    Chosen,
    Group,
    Mixes,
    cheapest,
    lower_hull,
    mixes,
)
from costmodel.stages import (
    DataParallel,
    LayoutPricer,
    Placed,
    parallel_of,
    shard_bytes,
    tier_rates,
)
from profiles.arrays import Array
from profiles.models import Job

STEPS: Final = 1000  # shares are told in thousandths, rounded up


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Bytes a second to the host, one way, and the seconds of a micro-batch's forward
    and backward that hide copies."""

    bytes_per_s: float
    forward_s: float
    backward_s: float

    def shared(self, part: float) -> Link:
        """What is left to a *part* of a stage, if its layers share the passes."""
        return Link(
            bytes_per_s=self.bytes_per_s,
            forward_s=part * self.forward_s,
            backward_s=part * self.backward_s,
        )

    def waits_s(self, away_bytes: Any, again_s: Any) -> Any:
        """What the two passes wait for copies, where backward makes so much again."""
        copy_s = away_bytes / self.bytes_per_s
        beyond = np.maximum(copy_s - self.forward_s, 0.0)
        return beyond + np.maximum(copy_s - self.backward_s - again_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A group of layers, and the link that what they keep may leave by."""

    group: Group
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Treated:
    """The options of a group's layers, which share of what they keep is away, the
    seconds of both, and the bytes held in flight (with buffers) and in work."""

    options: Chosen
    share: float
    seconds: float
    held_bytes: float
    working_bytes: float


def fit_away(
    asked: Sequence[Leaving], room_bytes: float, floor_bytes: float = 0.0
) -> list[Treated]:
    """What every group's layers do; the leanest choice where nothing fits.

    *floor_bytes* are the working set of what else the rank has.

    >>> from costmodel.layout.retention import KEEP_ALL, recompute
    >>> keep = Option(retention=KEEP_ALL, recompute_s=0, saved_bytes=9, working_bytes=1)
    >>> full = Option(
    ...     retention=recompute("*"), recompute_s=3, saved_bytes=1, working_bytes=9)
    >>> group = Group(count=4, weight=2, options=(keep, full))
    >>> link = Link(bytes_per_s=1, forward_s=4, backward_s=8)
    >>> [found] = fit_away([Leaving(group=group, link=link)], 70)
    >>> found.seconds, found.share, [one.recompute_s for one in found.options]
    (0.0, 0.056, [0, 0, 0, 0])
    """
    if len(asked) == 1:
        return [_alone(asked[0], room_bytes, floor_bytes)]
    caps = sorted({one.working_bytes for own in asked for one in own.group.options})
    tried = [_together(asked, room_bytes, cap, floor_bytes) for cap in caps]
    ways = [way for way in tried if way]
    return cheapest(ways, room_bytes, seconds=_seconds, needed=needed_bytes)


def _seconds(ways: Sequence[Treated]) -> float:
    return sum(one.seconds for one in ways)


def needed_bytes(ways: Sequence[Treated]) -> float:
    """What groups of one rank hold together: their working sets come one at a time."""
    working = max(one.working_bytes for one in ways)
    return sum(one.held_bytes for one in ways) + working


def _alone(
    asked: Leaving, room_bytes: float, floor_bytes: float, cap: float = np.inf
) -> Treated:
    """The best mix of one group, with no working set above *cap*, and the least share
    that fits; of equally fast ones the one that has least away."""
    group, link = asked.group, asked.link
    ways = mixes(group.count, group.options)
    working = np.maximum(ways.working_bytes, floor_bytes)
    over = group.weight * ways.held_bytes + working - room_bytes
    freed = group.weight * ways.held_bytes - _buffers(ways)
    exact = over / np.where(freed > 0, freed, np.nan)
    exact = np.where(over > 0, np.nan_to_num(exact, nan=np.inf), 0.0)
    fits = (exact <= 1) & (ways.working_bytes <= cap)
    share = np.minimum(np.ceil(exact * STEPS - 1e-9) / STEPS, 1.0)
    away = share * ways.held_bytes
    seconds = ways.seconds + link.waits_s(away, ways.seconds)
    held = group.weight * ways.held_bytes - share * freed
    order = np.lexsort((held, away, np.where(fits, seconds, np.inf)))
    row = int(order[0]) if fits.any() else int(np.argmin(held + working))
    return Treated(
        options=ways.chosen(row, group),
        share=float(share[row]),
        seconds=float(seconds[row]),
        held_bytes=float(held[row]),
        working_bytes=float(working[row]),
    )


def _buffers(ways: Mixes) -> Array:
    """What copies under way take where all that is kept leaves."""
    return np.asarray(np.minimum(2 * ways.widest_bytes, ways.held_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """A point of a group's hull: a mix with a share away; bytes of a micro-batch."""

    row: int
    share: float
    seconds: float
    kept_bytes: float
    buffer_bytes: float

    def held_bytes(self, weight: float) -> float:
        return weight * self.kept_bytes + self.buffer_bytes

    def treated(self, asked: Leaving, working_bytes: float) -> Treated:
        group = asked.group
        return Treated(
            options=mixes(group.count, group.options).chosen(self.row, group),
            share=self.share,
            seconds=self.seconds,
            held_bytes=self.held_bytes(group.weight),
            working_bytes=working_bytes,
        )


def _together(
    asked: Sequence[Leaving], room_bytes: float, cap: float, floor_bytes: float
) -> list[Treated] | None:
    """By the best ratio, with no working set above *cap*; None where some group's
    smallest one is. Every group has buffers of its own."""
    hulls = [_hull(one.group.count, one.group.options, one.link, cap) for one in asked]
    if not all(hulls):
        return None
    weights, working = [one.group.weight for one in asked], max(cap, floor_bytes)
    level, last = [0] * len(asked), -1
    held = [
        hull[0].held_bytes(weight) for hull, weight in zip(hulls, weights, strict=True)
    ]
    for _, place, number in _steps(hulls, weights):
        if sum(held) + working <= room_bytes:
            break
        last, level[place] = place, number
        held[place] = hulls[place][number].held_bytes(weights[place])
    found = [
        hull[at].treated(one, working)
        for one, hull, at in zip(asked, hulls, level, strict=True)
    ]
    if last >= 0:
        room = room_bytes - sum(held) + held[last]
        exact = _alone(asked[last], room, working, cap)
        if needed_bytes([exact]) <= room:
            found[last] = exact
    return found


def _steps(
    hulls: Sequence[Sequence[_Level]], weights: Sequence[float]
) -> list[tuple[float, int, int]]:
    """All steps down the hulls, those that free the most bytes a second first: the
    ratio, whose, and to which level."""
    return sorted(
        (
            (after.seconds - before.seconds)
            / (before.kept_bytes - after.kept_bytes)
            / max(weight, 1e-9),
            place,
            number,
        )
        for place, (hull, weight) in enumerate(zip(hulls, weights, strict=True))
        for number, (before, after) in enumerate(pairwise(hull), 1)
    )


@lru_cache(maxsize=1024)
def _hull(
    layers: int, options: tuple[Option, ...], link: Link, cap: float
) -> tuple[_Level, ...]:
    """The lower convex hull of seconds over bytes kept, the fastest first, of mixes of
    so many layers whose working set is not above *cap*: with nothing away, with what
    forward hides, with what backward hides, and with all of it."""
    ways = mixes(layers, options)
    rows = np.flatnonzero(ways.working_bytes <= cap)
    again, held = ways.seconds[rows], ways.held_bytes[rows]
    hidden = np.minimum(link.forward_s, link.backward_s + again)
    either = np.maximum(link.forward_s, link.backward_s + again)
    shares = np.concatenate(
        [
            np.zeros(len(rows)),
            *(
                np.minimum(one * link.bytes_per_s / held, 1.0)
                for one in (hidden, either)
            ),
            np.ones(len(rows)),
        ]
    )
    row, held, again = np.tile(rows, 4), np.tile(held, 4), np.tile(again, 4)
    seconds = again + link.waits_s(shares * held, again)
    kept = (1 - shares) * held
    buffers = shares * _buffers(ways)[row]
    return tuple(
        _Level(
            row=int(row[at]),
            share=float(shares[at]),
            seconds=float(seconds[at]),
            kept_bytes=float(kept[at]),
            buffer_bytes=float(buffers[at]),
        )
        for at in lower_hull(seconds, kept)
    )


def links_of(found: Estimate, job: Job, on: Machine, tier: str) -> tuple[Link, ...]:
    """The link of every virtual stage of *found*, whose activations are all here."""
    layout, where = found.layout, on.running(found.layout.gpus)
    plus, costs = layout.zero_plus, found.timeline.costs
    numbers = [parallel_of(one, layout.pp, plus) for one in layout.stages]
    parallel = DataParallel.of(numbers)
    to = tier_rates(parallel, Offload(tier=tier), where)
    rate = np.broadcast_to(np.minimum(to.read, to.write), len(layout.stages))
    hides = "offload" in where.framework.overlap.hidden
    backward_s = costs.backward_s - _fetched(found, job, where, parallel) / rate
    return tuple(
        Link(bytes_per_s=each, forward_s=forward, backward_s=backward)
        for each, forward, backward in zip(
            rate.tolist(),
            (costs.forward_s * hides).tolist(),
            (np.maximum(backward_s, 0.0) * hides).tolist(),
            strict=True,
        )
    )


def _fetched(found: Estimate, job: Job, on: Machine, parallel: DataParallel) -> Array:
    """Bytes of parameters that a backward of each stage brings from the host."""
    layout = found.layout
    if not layout.offload.parameters:
        return np.zeros(len(layout.stages))
    pricer = LayoutPricer(job=job, layout=layout, machine=on)
    held = Placed(pricer=pricer).columns()
    each = shard_bytes(layout.precision, on)
    frozen = held.frozen_parameters * layout.precision.frozen_bytes
    dense, experts = held.parameters * each + frozen, held.expert_parameters * each
    return np.asarray(dense / parallel.shards + experts / parallel.of_experts().shards)
