"""Laws of the menu of stages: what layers cost alone is no more than what the stage
that they make costs, so that bounds over all cuts are bounds."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.options.pins import Pins
from costmodel.simulation.estimator import estimate
from costmodel.stages.layout_cost import LayoutPricer, Placed, price_together
from costmodel.stages.stage_cost import StagePrice
from planner.heterogeneous.candidate_set import Menu, menus
from planner.heterogeneous.candidates import BACKWARD, FORWARD, GATHER, REDUCE, STEP
from planner.heterogeneous.partition import Partition
from tests.support.problems import on, problem

SLACK = 1 + 1e-9
MODELS = ("gpt-tiny", "gpt-mini", "deepseek-v2-lite")


@cache
def menus_of(name: str, where: str, framework: str, zero: int) -> list[Menu]:
    asked = problem(
        name,
        4,
        global_batch=4,
        where=on(where, framework),
        limit_bytes=1e15,
        pins=Pins(zero=zero, micro_batches=2),
    )
    return list(menus(asked))


def stages_of(menu: Menu, partition: Partition) -> StagePrice:
    """What the finished layout's stages cost."""
    asked, layout = menu.problem, menu.layout(partition)
    pricer = LayoutPricer(job=asked.job, layout=layout, machine=asked.machine)
    placed = Placed(pricer=pricer)
    price_together(placed.pricers)
    return placed.columns()


@given(
    name=st.sampled_from(MODELS),
    where=st.sampled_from(["dgx-a100-80gb", "rtx4090-8x"]),
    framework=st.sampled_from(["meshwright", "fsdp2", "megatron-core"]),
    zero=st.integers(0, 3),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_layers_alone_are_no_more_than_their_stage(
    name: str, where: str, framework: str, zero: int, data: st.DataObject
) -> None:
    menu = data.draw(st.sampled_from(menus_of(name, where, framework, zero)))
    for partition in menu.best(tolerance=0.1)[:4]:
        priced = stages_of(menu, partition)
        for place, part in enumerate(partition.parts):
            floor = menu.options[part.option].stages_s()[:, part.first, part.last]
            both_s = floor[FORWARD] + floor[BACKWARD]
            forward_s, backward_s = priced.forward_s[place], priced.backward_s[place]
            assert floor[FORWARD] <= forward_s * SLACK
            assert both_s <= (forward_s + backward_s) * SLACK
            late_s = max(priced.reduce_s[place] - backward_s, 0.0)
            over_s = forward_s + backward_s - both_s
            floor_s = max(floor[REDUCE] - floor[BACKWARD], 0.0)
            assert floor_s <= (late_s + over_s) * SLACK + 1e-12
            end_s = priced.step_s[place] + priced.gather_s[place]
            floor_s = floor[STEP] + max(floor[GATHER] - floor[FORWARD], 0.0)
            assert floor_s <= end_s * SLACK + 1e-12


@given(
    name=st.sampled_from(MODELS),
    where=st.sampled_from(["dgx-a100-80gb", "rtx4090-8x"]),
    framework=st.sampled_from(["meshwright", "fsdp2", "megatron-core", "nemo"]),
    zero=st.integers(0, 3),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_a_menu_s_bytes_are_no_more_than_a_stage_needs(
    name: str, where: str, framework: str, zero: int, data: st.DataObject
) -> None:
    menu = data.draw(st.sampled_from(menus_of(name, where, framework, zero)))
    asked = menu.problem
    for partition in menu.best(tolerance=0.1)[:4]:
        layout = menu.layout(partition)
        run = estimate(asked.job, asked.machine.cluster, layout, on=asked.machine)
        for place, (part, memory) in enumerate(
            zip(partition.parts, run.memory, strict=True)
        ):
            in_flight = min(len(partition.parts) - place, menu.micro_batches)
            held = menu.options[part.option].stages_bytes(in_flight)
            assert held[part.first, part.last] <= float(memory.needed) * SLACK


def test_reductions_are_near_what_a_stage_s_take() -> None:
    """Or the bound would know little of them."""
    menu, *_ = menus_of("gpt-1.3b", "rtx4090-8x", "meshwright", 1)
    for partition in menu.best(tolerance=0.1)[:4]:
        priced = stages_of(menu, partition)
        for place, part in enumerate(partition.parts):
            floor = menu.options[part.option].stages_s()
            alone = floor[REDUCE, part.first, part.last]
            assert alone == pytest.approx(priced.reduce_s[place], rel=0.05)


def test_updates_are_near_what_a_stage_s_take() -> None:
    """What a reduction takes of the backward beside it is not in it."""
    menu, *_ = menus_of("gpt-1.3b", "rtx4090-8x", "meshwright", 1)
    for partition in menu.best(tolerance=0.1)[:4]:
        priced = stages_of(menu, partition)
        for place, part in enumerate(partition.parts):
            floor = menu.options[part.option].stages_s()[:, part.first, part.last]
            alone = floor[STEP] + max(floor[GATHER] - floor[FORWARD], 0.0)
            end_s = priced.step_s[place] + priced.gather_s[place]
            assert alone >= 0.4 * end_s
