"""`--recompute auto`: on every stage as little is made again as its memory asks for.

    the layout that keeps everything is simulated: in flight at the peak, bytes over
    each pipeline rank's layers take the cheapest options that fit   → retention_fit
    the result is simulated; where a peak has moved the room is narrowed, and again

Stages differ: the first of 1F1B holds pp micro-batches, the last one. What a stage
takes does not change what others may; a shorter pass never makes a step longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.atoms import block_prices
from costmodel.combination import TREATMENTS, Combination
from costmodel.estimate import Estimate, estimate
from costmodel.known import Known
from costmodel.layout import LayerPlan, Layout, Stage
from costmodel.machine import Machine
from costmodel.memory import FRAGMENTATION, pipeline_buffers
from costmodel.mesh_parallel import place_of
from costmodel.offload import Offload
from costmodel.retention import Retention
from costmodel.retention_fit import Group, fit
from costmodel.retention_menu import Option, menu
from costmodel.sharding import Degrees, entry_bytes
from costmodel.support import refusals
from costmodel.uncertainty import spread_of
from costmodel.uniform import Uniform, spell_out
from profiles.errors import Contradiction
from profiles.graph import Block
from profiles.job import Job

Array = NDArray[Any]
AUTO: Final = "auto"
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
    limit = where.device.capacity_bytes * spread_of(where).share_for(PROBABILITY)
    return fitted(choice, job, on, limit, executable=executable).layout


def fitted(
    choice: Uniform, job: Job, on: Machine, limit_bytes: float, *, executable: bool
) -> Estimate:
    """*choice* with the cheapest retention by stage that stays under *limit_bytes*,
    as simulated; with the leanest one where none does.

    *executable* leaves out what the runtime does not carry out. *choice*'s offloading
    of activations stays as it is.
    """
    if choice.recompute_layers is not None:
        raise Contradiction(
            f"--recompute auto chooses how many layers of each stage make what again; "
            f"leave --recompute-layers {choice.recompute_layers} out"
        )
    kept = replace(choice, recompute="none")
    plain = spell_out(kept, job.graph, job.global_batch)
    known = Known()
    found = estimate(job, on.cluster, plain, on=on, known=known)
    if found.peak_memory_bytes <= limit_bytes:
        return found
    words = executed(plain, job) if executable else None
    stages = _Stages(kept=found, job=job, on=on, offload=choice.offload, words=words)
    rooms = stages.rooms(limit_bytes)
    seen = []
    for turn in range(ROUNDS):
        found = estimate(job, on.cluster, stages.layout(rooms), on=on, known=known)
        seen.append(found)
        over = np.array([float(item.total) for item in found.memory]) - limit_bytes
        if over.max() <= 0:
            return found
        more = np.where(over > 0, over + SLACK * limit_bytes, 0.0)
        rooms = rooms - (1 + turn / 2) * more / (1 + FRAGMENTATION)
    return min(seen, key=lambda one: one.peak_memory_bytes)


def executed(plain: Layout, job: Job) -> frozenset[str]:
    """The treatments that the runtime carries out in *plain*, where it keeps all."""
    used = Combination.of_layout(plain)
    known = set(refusals(used, job))
    asked = {word: replace(used, retentions=frozenset((word,))) for word in TREATMENTS}
    return frozenset(
        word for word, one in asked.items() if known.issuperset(refusals(one, job))
    )


@dataclass(kw_only=True)
class _Stages:
    """A layout that keeps everything, as simulated, and what its layers may do."""

    kept: Estimate
    job: Job
    on: Machine
    offload: Offload
    words: Set[str] | None
    _menus: dict[object, tuple[Option, ...]] = field(default_factory=dict)

    @property
    def _layout(self) -> Layout:
        return self.kept.layout

    @cached_property
    def _groups(self) -> list[list[tuple[int, str, Group]]]:
        """By pipeline rank: the stage and the kind of its layers, and the group."""
        layout, blocks = self._layout, self.job.graph.layer_blocks
        flying = self.kept.timeline.in_flight_at_peak()
        copies = float(pipeline_buffers(self.on, layout.pp))
        found: list[list[tuple[int, str, Group]]] = [[] for _ in range(layout.pp)]
        for number, stage in enumerate(layout.stages):
            names = [name for name in stage.layers if name.isdigit()]
            kinds = Counter(blocks[name].name for name in names)
            for kind, count in kinds.items():
                together = count if len(kinds) == 1 else 1
                options = self._menu(stage, self.job.graph.block(kind), together)
                for rank in stage.held_by:
                    weight = copies * float(flying[rank, number])
                    group = Group(count=count, weight=weight, options=options)
                    found[rank].append((number, kind, group))
        return found

    @cached_property
    def _working(self) -> Array:
        """The working set of each rank at its peak: a layer's, or what else it has."""
        timeline = self.kept.timeline
        at_peak = timeline.peak_bytes - timeline.held_at_peak()
        least = [
            max((group.options[0].working_bytes for _, _, group in groups), default=0.0)
            for groups in self._groups
        ]
        return np.maximum(at_peak, least)

    def rooms(self, limit_bytes: float) -> Array:
        """Bytes for kept tensors and the working set of each rank's layers."""
        rooms = []
        for memory, groups in zip(self.kept.memory, self._groups, strict=True):
            here = sum(
                group.weight * group.count * group.options[0].saved_bytes
                for _, _, group in groups
            )
            over = (float(memory.total) - limit_bytes) / (1 + FRAGMENTATION)
            rooms.append(here - over)
        return np.array(rooms) + self._working

    def layout(self, rooms: Array) -> Layout:
        """The layout whose ranks take what fits in *rooms*."""
        chosen: dict[tuple[int, str], tuple[Option, ...]] = {}
        ranks = zip(rooms.tolist(), self._working.tolist(), self._groups, strict=True)
        for room, working, groups in ranks:
            if not groups:
                continue
            options = fit([group for _, _, group in groups], room, working)
            for (number, kind, _), own in zip(groups, options, strict=True):
                # A stage with two holders fits on both: by the leaner choice.
                chosen[number, kind] = min(
                    (own, chosen.get((number, kind), own)), key=_kept_bytes
                )
        blocks = self.job.graph.layer_blocks
        plans: dict[LayerPlan, LayerPlan] = {}
        stages = tuple(
            _replanned(
                stage,
                {kind: own for (at, kind), own in chosen.items() if at == number},
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
        if plan.zero == 3:  # whose parameters each run would gather once more
            neighbours = 1
        key = (block.name, plan.sharding, plan.modules, neighbours)
        if key not in self._menus:
            degrees = self._degrees(stage, plan)
            self._menus[key] = menu(
                block,
                block_prices(block, degrees, layout.precision, where),
                entry_bytes(block, degrees, layout.precision),
                where,
                offload=self.offload,
                words=self.words,
                neighbours=neighbours,
            )
        return self._menus[key]

    def _degrees(self, stage: Stage, plan: LayerPlan) -> Degrees:
        layout, mesh = self._layout, stage.mesh
        place = place_of(mesh, layout.micro_batch(stage))
        tp, cp, micro_batch, ep, etp = map(np.asarray, place)
        return Degrees(
            tp=tp,
            cp=cp,
            micro_batch=micro_batch,
            seq_len=self.job.seq_len,
            sequence_parallel=plan.sharding == "megatron-sp",
            cp_kind=layout.cp_kind,
            flash_attention=layout.flash_attention,
            ep=ep,
            etp=etp,
            imbalance=self.on.imbalance,
            modules=plan.modules,
        )


def _kept_bytes(options: Sequence[Option]) -> float:
    return sum(one.saved_bytes for one in options)


def _retentions(chosen: Sequence[Option]) -> Iterator[Retention]:
    """What each layer does; of joined neighbours the first keeps its input."""
    for option, group in groupby(chosen):
        for place, _ in enumerate(group):
            inside = option.inside if place % option.joined else None
            yield inside or option.retention


def _replanned(
    stage: Stage,
    chosen: dict[str, Sequence[Option]],
    kinds: dict[str, str],
    plans: dict[LayerPlan, LayerPlan],
) -> Stage:
    """*stage* with the options *chosen* for each kind of its numbered layers, in order;
    equal plans are one object."""
    left = {kind: iter(_retentions(own)) for kind, own in chosen.items()}
    found = []
    for name, plan in zip(stage.layers, stage.plans, strict=True):
        if name.isdigit():
            plan = replace(plan, retention=next(left[kinds[name]]))
            plan = plans.setdefault(plan, plan)
        found.append(plan)
    return replace(stage, plans=tuple(found))
