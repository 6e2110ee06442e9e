"""`--recompute auto`: on every stage as little is made again as its memory asks for.

    the layout that keeps everything is simulated: in flight at the peak, bytes over
    each pipeline rank's layers take the cheapest options that fit   → stage_retention
    the result is simulated; where a peak has moved the room is narrowed, and again

Stages differ: the first of 1F1B holds pp micro-batches, the last one. What a stage
takes does not change what others may; a shorter pass never makes a step longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.combination import AWAY, TREATMENTS, Combination
from costmodel.estimate import Estimate, estimate
from costmodel.known import Known
from costmodel.layout import Layout
from costmodel.machine import Machine
from costmodel.memory import secured_of_kept
from costmodel.retention import AUTO
from costmodel.stage_retention import Stages
from costmodel.support import refusals
from costmodel.uncertainty import with_odds
from costmodel.uniform import Uniform, spell_out, split_layers
from profiles.errors import Contradiction
from profiles.job import Job

Array = NDArray[Any]
Way = Callable[[Array], Layout]  # from the room of each rank
PROBABILITY: Final = 0.95  # with which it is to fit, unless a limit is given
ROUNDS: Final = 8  # how often the room is narrowed
SLACK: Final = 1e-6  # of the limit: sums of many floats in two orders


def spelled_out(
    choice: Uniform, job: Job, on: Machine, *, executable: bool = False
) -> Layout:
    """The full layout of *choice*, whose recompute may be `auto`.

    Raises as `spell_out`, and Contradiction for `auto` in just some layers.
    """
    if choice.recompute != AUTO:
        return spell_out(choice, job.graph, job.global_batch)
    where = on.running(choice.gpus)
    limit, sure = where.device.capacity_bytes, with_odds(on, PROBABILITY)
    return fitted(choice, job, sure, limit, executable=executable).layout


def fitted(
    choice: Uniform,
    job: Job,
    on: Machine,
    limit_bytes: float,
    *,
    executable: bool,
    leaves_to: str | None = None,
    known: Known | None = None,
    allowed: frozenset[str] | None = None,
) -> Estimate:
    """*choice* with the cheapest retention by stage that stays under *limit_bytes*,
    as simulated; with the leanest one where none does.

    *executable* leaves out what the runtime does not carry out, *allowed* all but so
    many treatments. *choice*'s offloading of activations stays as it is, unless they
    are free to leave to the tier *leaves_to*: then each stage has a share of its own
    away, if that is faster. What is *known* of the job on the machine is not priced
    again.
    """
    if choice.recompute_layers is not None:
        raise Contradiction(
            f"--recompute auto chooses how many layers of each stage make what again; "
            f"leave --recompute-layers {choice.recompute_layers} out"
        )
    kept = replace(choice, recompute="none")
    plain = spell_out(kept, job.graph, job.global_batch)
    known = Known() if known is None else known
    found = estimate(job, on.cluster, plain, on=on, known=known)
    if found.peak_secured_bytes <= limit_bytes:
        return found
    words = executed(plain, job) if executable else None
    if allowed is not None:
        words = allowed if words is None else words & allowed
    stages = Stages(kept=found, job=job, on=on, offload=choice.offload, words=words)
    ways: list[Way] = [stages.made_again]
    if leaves_to is not None and (words is None or AWAY[leaves_to] in words):
        ways.append(partial(stages.made_again_or_away, tier=leaves_to))
    results = [_narrowed(stages, way, limit_bytes, known) for way in ways]
    fits = [one for one in results if one.peak_secured_bytes <= limit_bytes]
    if fits:
        return min(fits, key=lambda one: one.step_time_s)
    return min(results, key=lambda one: one.peak_secured_bytes)


def fewest_layers(
    choice: Uniform, job: Job, on: Machine, limit_bytes: float, known: Known
) -> tuple[Uniform, Estimate]:
    """*choice* with as many layers of each stage made again whole as have to be to stay
    under *limit_bytes*, the first ones; all of them where that is too few."""
    stages = choice.pp * choice.virtual_stages
    counts = split_layers(job.graph.body, stages, job.graph.tail)

    def priced(again: int) -> tuple[Uniform, Estimate]:
        some = None if again >= max(counts) else again
        one = replace(choice, recompute="full", recompute_layers=some)
        if not again:
            one = replace(choice, recompute="none")
        layout = spell_out(one, job.graph, job.global_batch)
        return one, estimate(job, on.cluster, layout, on=on, known=known)

    found = priced(0)
    if found[1].peak_secured_bytes <= limit_bytes:
        return found
    too_few, enough, found = 0, max(counts), priced(max(counts))
    while enough - too_few > 1:
        again = (too_few + enough) // 2
        tried = priced(again)
        if tried[1].peak_secured_bytes <= limit_bytes:
            enough, found = again, tried
        else:
            too_few = again
    return found


def _narrowed(stages: Stages, way: Way, limit_bytes: float, known: Known) -> Estimate:
    """The layout that *way* makes of the room of each rank, narrowed until it fits."""
    rooms = stages.rooms(limit_bytes)
    seen: list[Estimate] = []
    each = secured_of_kept(stages.on.software.footprint)
    for turn in range(ROUNDS):
        layout = way(rooms)
        if not seen or layout != seen[-1].layout:
            seen.append(
                estimate(
                    stages.job, stages.on.cluster, layout, on=stages.on, known=known
                )
            )
        found = seen[-1]
        over = np.array([float(item.secured) for item in found.memory]) - limit_bytes
        if over.max() <= 0:
            return found
        more = np.where(over > 0, over + SLACK * limit_bytes, 0.0)
        rooms = rooms - (1 + turn / 2) * more / each
    return min(seen, key=lambda one: one.peak_secured_bytes)


def executed(plain: Layout, job: Job) -> frozenset[str]:
    """The treatments that the runtime carries out in *plain*, where it keeps all."""
    used = Combination.of_layout(plain)
    known = set(refusals(used, job))
    asked = {word: replace(used, retentions=frozenset((word,))) for word in TREATMENTS}
    return frozenset(
        word for word, one in asked.items() if known.issuperset(refusals(one, job))
    )
