"""A layout as the `Uniform` it was spelled out from, where it is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from costmodel.columns import RECOMPUTES
from costmodel.layout import Layout
from costmodel.retention import AUTO, KEEP_ALL
from costmodel.uniform import Uniform, spell_out
from profiles.errors import MeshwrightError
from profiles.graph import ModelGraph


def uniform_of(layout: Layout, graph: ModelGraph) -> Uniform | None:
    """The dozen numbers that mean exactly *layout*; None if no such numbers do."""
    return _meaning(layout, graph, _guesses(layout))


def nearly_uniform_of(layout: Layout, graph: ModelGraph) -> Uniform | None:
    """The same, but that what layers keep, how their operators are sharded and how many
    a stage has may be their own: recompute is then `auto`, and shardings the preset."""
    cuts = tuple(one.body for one in layout.stages)
    stages = tuple(
        replace(one, plans=tuple(replace(plan, modules=()) for plan in one.plans))
        for one in layout.stages
    )
    preset = replace(layout, stages=stages)
    found = _meaning(preset, graph, _cut(_guesses(preset), cuts))
    if found is not None:
        return found
    stages = tuple(
        replace(one, plans=tuple(replace(it, retention=KEEP_ALL) for it in one.plans))
        for one in stages
    )
    bare = replace(layout, stages=stages)
    found = _meaning(bare, graph, _cut(islice(_guesses(bare), 1), cuts))
    return None if found is None else replace(found, recompute=AUTO)


def _meaning(
    layout: Layout, graph: ModelGraph, choices: Iterable[Uniform]
) -> Uniform | None:
    """The first of *choices* that means *layout*."""
    for choice in choices:
        try:
            if spell_out(choice, graph, layout.global_batch) == layout:
                return choice
        except MeshwrightError:
            continue
    return None


def _cut(choices: Iterable[Uniform], cuts: tuple[int, ...]) -> Iterator[Uniform]:
    """Each of *choices* with stages as even as can be, and with these *cuts*."""
    for choice in choices:
        yield choice
        yield replace(choice, layers_per_stage=cuts)


def _guesses(layout: Layout) -> Iterator[Uniform]:
    """By recompute preset, in all layers and in the first few of each stage."""
    stage = layout.stages[0]
    mesh, plans = stage.mesh, [plan for one in layout.stages for plan in one.plans]
    plain = Uniform(
        tp=mesh.tp,
        pp=layout.pp,
        dp=mesh.dp,
        cp=mesh.cp,
        ep=mesh.ep,
        etp=mesh.etp,
        micro_batch=layout.micro_batch(stage),
        schedule=layout.schedule,
        virtual_stages=layout.virtual_stages,
        zero=plans[0].zero,
        zero_group=mesh.dp_shard,
        sequence_parallel=plans[0].sharding == "megatron-sp",
        cp_kind=layout.cp_kind,
        flash_attention=layout.flash_attention,
        precision=layout.precision_name,
        gradient_format=layout.gradient_format,
        offload=replace(layout.away, activations=layout.away_share),
        zero_plus=layout.zero_plus,
    )
    cut = tuple(one.body for one in layout.stages)
    for counts in (None, cut):
        for name in RECOMPUTES:
            yield replace(plain, recompute=name, layers_per_stage=counts)
    most = max(one.body for one in layout.stages)
    for name in RECOMPUTES[1:]:
        for first in range(most):
            yield replace(plain, recompute=name, recompute_layers=first)
