"""`--recompute auto`: on every stage as little is made again as its memory asks for.

    the layout that keeps everything is simulated: in flight at the peak, bytes over
    each pipeline rank's layers take the cheapest options that fit   → stage_retention
    the result is simulated; where a peak has moved the room is narrowed, and again

Stages differ: the first of 1F1B holds pp micro-batches, the last one. What a stage
takes does not change what others may; a shorter pass never makes a step longer.

What the layers of each stage do with what they save, in the room that is left.

a simulated layout that keeps everything     → groups of layers, room by rank
what does not fit is made again              → retention_fit
or it is away in part, if that is faster     → retention_away
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Final, Protocol

import numpy as np

from costmodel.layout import (
    AUTO,
    LayerPlan,
    Layout,
    Offload,
    Retention,
    Stage,
    Uniform,
    offloaded,
    spell_out,
    split_layers,
)
from costmodel.machine import Machine
from costmodel.operators import Degrees, OperatorPrice, Packer, entry_bytes
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.simulation.offload_solver import Leaving, fit_away, links_of
from costmodel.simulation.remat_options import Option, menu
from costmodel.simulation.remat_solver import Chosen, Group, fit
from costmodel.simulation.uncertainty import with_odds
from costmodel.stages import (
    Known,
    block_prices,
    pipeline_buffers,
    place_of,
    secured_of_kept,
    weight_bytes,
)
from costmodel.support import AWAY, TREATMENTS, Combination, refusals
from profiles.arrays import Array
from profiles.errors import Contradiction
from profiles.hardware import Precision
from profiles.models import Block, Job


class _Own(Protocol):
    """What the layers that a rank holds do in its room, beside a working set."""

    def __call__(
        self, held: Sequence[_Held], room: float, working: float
    ) -> list[_Done]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Layers of one kind that a rank holds: of which stage, and what they may do."""

    stage: int
    kind: str
    group: Group
    part: float  # of the stage's numbered layers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """What such layers do, one after another, and the bytes that they then keep."""

    retentions: tuple[Retention, ...]
    kept_bytes: float


@dataclass(kw_only=True)
class Stages:
    """A layout that keeps everything, as simulated, and what its layers may do."""

    kept: Estimate
    job: Job
    on: Machine
    offload: Offload
    words: Set[str] | None
    known: Known

    @property
    def _layout(self) -> Layout:
        return self.kept.layout

    @cached_property
    def _held(self) -> list[list[_Held]]:
        """By pipeline rank."""
        layout, blocks = self._layout, self.job.graph.layer_blocks
        flying = self.kept.timeline.in_flight_at_peak()
        copies = float(pipeline_buffers(self.on, layout.pp))
        found: list[list[_Held]] = [[] for _ in range(layout.pp)]
        for number, stage in enumerate(layout.stages):
            names = [name for name in stage.layers if name.isdigit()]
            kinds = Counter(blocks[name].name for name in names)
            for kind, count in kinds.items():
                together = count if len(kinds) == 1 else 1
                options = self._menu(stage, self.job.graph.block(kind), together)
                for rank in stage.held_by:
                    weight = copies * float(flying[rank, number])
                    group = Group(count=count, weight=weight, options=options)
                    part = count / len(names)
                    held = _Held(stage=number, kind=kind, group=group, part=part)
                    found[rank].append(held)
        return found

    @cached_property
    def _fitted(self) -> dict[tuple[int, float, float], list[_Done]]:
        """What ranks made of a room: most keep it when others' are narrowed."""
        return {}

    @cached_property
    def _working(self) -> Array:
        """The working set of each rank at its peak: a layer's, or what else it has."""
        timeline = self.kept.timeline
        at_peak = timeline.peak_bytes - timeline.held_at_peak()
        least = [
            max((one.group.options[0].working_bytes for one in held), default=0.0)
            for held in self._held
        ]
        return np.maximum(at_peak, least)

    def rooms(self, limit_bytes: float) -> Array:
        """Bytes for kept tensors and the working set of each rank's layers."""
        rooms, each = [], secured_of_kept(self.on.framework.footprint)
        for memory, held in zip(self.kept.memory, self._held, strict=True):
            groups = [one.group for one in held]
            here = sum(
                group.weight * group.count * group.options[0].saved_bytes
                for group in groups
            )
            over = (float(memory.secured) - limit_bytes) / each
            rooms.append(here - over)
        return np.array(rooms) + self._working

    def made_again(self, rooms: Array) -> Layout:
        """The layout whose ranks make again what does not fit in *rooms*."""

        def own(held: Sequence[_Held], room: float, working: float) -> list[_Done]:
            key = (id(held), room, working)
            if key not in self._fitted:
                found = fit([one.group for one in held], room, working)
                self._fitted[key] = [_done(options) for options in found]
            return self._fitted[key]

        return self._with(rooms, own)

    def made_again_or_away(self, rooms: Array, tier: str) -> Layout:
        """The same, but that a share of what a stage keeps may be on the *tier*."""
        links = links_of(self.kept, self.job, self.on, tier)

        def own(held: Sequence[_Held], room: float, working: float) -> list[_Done]:
            asked = [
                Leaving(group=one.group, link=links[one.stage].shared(one.part))
                for one in held
            ]
            found = fit_away(asked, room, working)
            return [
                _away(
                    _done(did.options), self.job.graph.block(one.kind), did.share, tier
                )
                for one, did in zip(held, found, strict=True)
            ]

        return self._with(rooms, own)

    def _with(self, rooms: Array, own: _Own) -> Layout:
        """The layout whose ranks' layers do what *own* says."""
        done: dict[tuple[int, str], _Done] = {}
        for room, working, held in zip(
            rooms.tolist(), self._working.tolist(), self._held, strict=True
        ):
            for one, did in zip(
                held, own(held, room, working) if held else (), strict=True
            ):
                # A stage with two holders fits on both: by the leaner choice.
                other = done.get((one.stage, one.kind), did)
                done[one.stage, one.kind] = min(did, other, key=lambda d: d.kept_bytes)
        blocks = self.job.graph.layer_blocks
        plans: dict[LayerPlan, LayerPlan] = {}
        stages = tuple(
            _replanned(
                stage,
                {
                    kind: did.retentions
                    for (at, kind), did in done.items()
                    if at == number
                },
                {name: blocks[name].name for name in stage.layers},
                plans,
            )
            for number, stage in enumerate(self._layout.stages)
        )
        return replace(self._layout, stages=stages)

    def _menu(self, stage: Stage, block: Block, neighbours: int) -> tuple[Option, ...]:
        plan = next(
            plan
            for name, plan in zip(stage.layers, stage.plans, strict=True)
            if self.job.graph.layer_blocks[name] is block
        )
        layout, where = self._layout, self.on.running(self._layout.gpus)
        degrees = degrees_in(layout, stage, plan, self.job, self.on)
        gathers = plan.zero == 3

        def made() -> tuple[Option, ...]:
            prices = block_prices(block, degrees, layout.precision, where)
            weights = _weight_bytes(prices, layout.precision)
            return menu(
                block,
                prices,
                entry_bytes(block, degrees, layout.precision),
                Packer.of(where, layout.precision),
                offload=self.offload,
                words=self.words,
                neighbours=neighbours,
                gathered_bytes=weights if gathers else 0.0,
            )

        place = place_of(stage.mesh, layout.micro_batch(stage))
        what = block.name, place, layout.cp_kind, layout.flash_attention, neighbours
        how = plan.sharding, plan.modules, gathers, self.offload, layout.precision
        words = None if self.words is None else frozenset(self.words)
        return self.known.once(("menu", *what, *how, words), made)


def degrees_in(
    layout: Layout, stage: Stage, plan: LayerPlan, job: Job, on: Machine
) -> Degrees:
    """How a layer of *plan* is split in *stage*."""
    place = place_of(stage.mesh, layout.micro_batch(stage))
    tp, cp, micro_batch, ep, etp = map(np.asarray, place)
    return Degrees(
        tp=tp,
        cp=cp,
        micro_batch=micro_batch,
        seq_len=job.seq_len,
        sequence_parallel=plan.sharding == "megatron-sp",
        cp_kind=layout.cp_kind,
        flash_attention=layout.flash_attention,
        ep=ep,
        etp=etp,
        imbalance=on.imbalance,
        modules=plan.modules,
    )


def _weight_bytes(prices: Mapping[str, OperatorPrice], precision: Precision) -> float:
    """Of a layer, whole."""
    trained, frozen = np.zeros(()), np.zeros(())
    for one in prices.values():
        trained = trained + one.parameters + one.expert_parameters
        frozen = frozen + one.frozen_parameters
    return float(weight_bytes(trained, frozen, precision))


def _done(options: Chosen) -> _Done:
    counts = Counter(options).items()
    return _Done(
        retentions=tuple(_retentions(options)),
        kept_bytes=sum(one.held_bytes(layers) for one, layers in counts),
    )


def _away(done: _Done, block: Block, share: float, tier: str) -> _Done:
    """The same with a *share* of what is kept on the *tier*."""
    if not share:
        return done
    away = Offload(activations=share, tier=tier)
    return _Done(
        retentions=tuple(offloaded(one, block, away) for one in done.retentions),
        kept_bytes=(1 - share) * done.kept_bytes,
    )


def _retentions(chosen: Sequence[Option]) -> Iterator[Retention]:
    """What each layer does; of joined neighbours the first keeps its input."""
    for option, group in groupby(chosen):
        for place, _ in enumerate(group):
            inside = option.inside if place % option.joined else None
            yield inside or option.retention


def _replanned(
    stage: Stage,
    done: dict[str, tuple[Retention, ...]],
    kinds: dict[str, str],
    plans: dict[LayerPlan, LayerPlan],
) -> Stage:
    """*stage* with what each kind of its numbered layers does, in order; equal plans
    are one object."""
    left = {kind: iter(own) for kind, own in done.items()}
    found = []
    for name, plan in zip(stage.layers, stage.plans, strict=True):
        if name.isdigit():
            plan = replace(plan, retention=next(left[kinds[name]]))
            plan = plans.setdefault(plan, plan)
        found.append(plan)
    return replace(stage, plans=tuple(found))


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
    stages = Stages(
        kept=found, job=job, on=on, offload=choice.offload, words=words, known=known
    )
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
    even = split_layers(job.graph.body, stages, job.graph.tail)
    counts = choice.layers_per_stage or even

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
    each = secured_of_kept(stages.on.framework.footprint)
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
