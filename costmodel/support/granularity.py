"""Facts about numbered layers: how stages share them out, and which are made again.

Frameworks differ in how finely that can be said
(`costmodel.support.framework_features`); our own runtime takes every layer by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from costmodel.layout import (
    LATER,
    Layout,
    Retention,
    Stage,
    Uniform,
    body_presets,
    operator_of,
    split_layers,
)
from costmodel.support.features import BY_NAME, SEGMENTS, Fact, Facts, treatment
from profiles.models import Job

EQUAL, BUT_ENDS, UNEQUAL = "equal", "equal but at the ends", "unequal"
ALL, ALIKE = "all layers", "some layers of each stage"
BY_STAGE = "layers chosen stage by stage"


def granularity(asked: Uniform | Layout, job: Job) -> Facts:
    """`layers of stages`, `recompute in` and `recomputed operators`; the last names
    operators, or none where layers are made again whole or not."""
    found = _of_layout(asked) if isinstance(asked, Layout) else _of_choice(asked, job)
    names = "layers of stages", "recompute in", "recomputed operators"
    return {name: Fact(one, one) for name, one in zip(names, found, strict=True)}


def shared_out(counts: Sequence[int]) -> str:
    """How stages of so many numbered layers are alike.

    >>> shared_out((3, 3)), shared_out((2, 3, 3, 2)), shared_out((2, 3, 4, 3))
    ('equal', 'equal but at the ends', 'unequal')
    """
    if len(set(counts)) == 1:
        return EQUAL
    return BUT_ENDS if len(set(counts[1:-1])) <= 1 else UNEQUAL


def _of_choice(choice: Uniform, job: Job) -> tuple[str, str, str]:
    graph, stages = job.graph, choice.pp * choice.virtual_stages
    even = choice.layers_per_stage
    counts = even or split_layers(graph.body, stages, graph.tail)
    some = choice.recompute_layers
    if choice.recompute in LATER:
        return shared_out(counts), BY_STAGE, "none"
    kinds = body_presets(choice.recompute, graph).values() if some != 0 else ()
    again = any(one.recomputed for one in kinds)
    part = again and some is not None and some < max(counts)
    return shared_out(counts), ALIKE if part else ALL, _named(kinds)


def _of_layout(layout: Layout) -> tuple[str, str, str]:
    own = [_retentions(stage) for stage in layout.stages]
    again = [sum(bool(one.recomputed) for one in stage) for stage in own]
    words = {
        "full" if treatment(one) == SEGMENTS else treatment(one)
        for stage in own
        for one in dict.fromkeys(stage)
        if one.recomputed
    }
    counts = [len(stage) for stage in own]
    alike = all(
        number == min(max(again), count)
        for number, count in zip(again, counts, strict=True)
    )
    where = BY_STAGE
    if not words or (again == counts and len(words) == 1):
        where = ALL
    elif alike and len(words) == 1:
        where = ALIKE
    every = dict.fromkeys(one for stage in own for one in stage)
    return shared_out(counts), where, _named(every)


def _retentions(stage: Stage) -> list[Retention]:
    """Those of its numbered layers."""
    named = zip(stage.layers, stage.plans, strict=True)
    return [plan.retention for name, plan in named if name.isdigit()]


def _named(retentions: Iterable[Retention]) -> str:
    names = {
        operator_of(tensor)
        for one in retentions
        if treatment(one) == BY_NAME
        for tensor in one.recomputed
    }
    return ",".join(sorted(names)) or "none"
