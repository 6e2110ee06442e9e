"""Finished layouts changed in ways that no dozen numbers say, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from costmodel.layout.layout import LayerPlan, Layout, Ranges
from costmodel.layout.retention import Retention

Edit = Callable[[Layout], Layout]


def after(first: Edit, then: Edit) -> Edit:
    """Both, one after the other."""
    return lambda layout: then(first(layout))


def unchanged(layout: Layout) -> Layout:
    return layout


def each_plan(layout: Layout, change: Callable[[str, LayerPlan], LayerPlan]) -> Layout:
    stages = tuple(
        replace(
            stage,
            plans=tuple(
                change(name, plan)
                for name, plan in zip(stage.layers, stage.plans, strict=True)
            ),
        )
        for stage in layout.stages
    )
    return replace(layout, stages=stages)


def replanned(layout: Layout, layer: str, retention: Retention) -> Layout:
    return each_plan(
        layout,
        lambda name, plan: (
            replace(plan, retention=retention) if name == layer else plan
        ),
    )


def mixed_zero(layout: Layout) -> Layout:
    return each_plan(
        layout, lambda name, plan: replace(plan, zero=2) if name == "0" else plan
    )


def mixed_sharding(layout: Layout) -> Layout:
    return each_plan(
        layout,
        lambda name, plan: replace(plan, sharding="megatron") if name == "0" else plan,
    )


def unlike(layout: Layout) -> Layout:
    first, last = layout.stages
    mesh = replace(last.mesh, tp=2, dp_replicate=1)
    return replace(layout, stages=(first, replace(last, mesh=mesh)))


def elsewhere(layout: Layout) -> Layout:
    first, last = layout.stages
    swapped = (replace(first, held_by=(1,)), replace(last, held_by=(0,)))
    return replace(layout, stages=swapped)


def gaps(layout: Layout) -> Layout:
    first, last = layout.stages
    mesh = replace(last.mesh, ranks=Ranges(((6, 7),)))
    return replace(layout, stages=(first, replace(last, mesh=mesh)))


def experts(layout: Layout) -> Layout:
    (stage,) = layout.stages
    mesh = replace(stage.mesh, ep=2)
    return replace(layout, stages=(replace(stage, mesh=mesh),))


def wide_experts(layout: Layout) -> Layout:
    (stage,) = layout.stages
    mesh = replace(stage.mesh, etp=2)
    return replace(layout, stages=(replace(stage, mesh=mesh),))
