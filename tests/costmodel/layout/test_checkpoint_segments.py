"""Segments: which layers keep their input, and what a plan must say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.checkpoint_segments import (
    counted,
    first_of_each,
    inner,
    longest,
    segments_of,
)
from costmodel.layout.layout import LayerPlan, Layout
from costmodel.layout.offload import Offload, offloaded
from costmodel.layout.retention import KEEP_ALL, Action, Retention, Treatment, recompute
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.stages.layout_cost import LayoutPricer
from profiles.errors import InvalidSpec
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job

WHERE = machine(cluster("dgx-a100-80gb"))


def job() -> Job:
    found = model("gpt-mini")
    return Job(model="gpt-mini", spec=found.spec, seq_len=256, global_batch=4)


def sqrt_layout(**choice: object) -> Layout:
    return spell_out(Uniform(recompute="sqrt", **choice), job().graph, 4)  # type: ignore[arg-type]


def replanned(layout: Layout, place: int, retention: Retention) -> Layout:
    stage = layout.stages[0]
    plans = list(stage.plans)
    plans[place] = LayerPlan(
        sharding=plans[place].sharding, zero=plans[place].zero, retention=retention
    )
    return replace(layout, stages=(replace(stage, plans=tuple(plans)),))


@given(layers=st.integers(1, 5000))
def test_segments_are_about_the_square_root(layers: int) -> None:
    begins = sorted(first_of_each(layers))
    lengths = [
        after - here for here, after in zip(begins, [*begins[1:], layers], strict=True)
    ]
    assert begins[0] == 0
    assert len(begins) == int(counted(layers))
    assert max(lengths) == int(longest(layers))
    assert max(lengths) - min(lengths) <= 1
    assert len(begins) + max(lengths) <= 2 * layers**0.5 + 1.5


def test_no_layers_have_no_segment() -> None:
    assert first_of_each(0) == frozenset()
    assert int(longest(0)) == 0


def test_segments_are_read_off_the_plans() -> None:
    layout = sqrt_layout()
    (stage,) = layout.stages
    found = segments_of(stage, job().graph.layers)
    assert found == (range(1, 4), range(4, 7), range(7, 9))  # the embedding is first


def test_the_first_layers_alone_may_be_cut() -> None:
    (stage,) = sqrt_layout(recompute_layers=4).stages
    assert segments_of(stage, job().graph.layers) == (range(1, 3), range(3, 5))
    assert stage.plans[5].retention == KEEP_ALL


@pytest.mark.parametrize(
    ("place", "retention", "said"),
    [
        (1, inner(job().graph.block("layer")), "layer 0 does not keep its input"),
        (2, recompute("layer_in"), "not all of itself"),
        (2, recompute("mlp_up_out"), "layer 2 does not keep its input"),
        (
            3,
            Retention(
                tensors={
                    "*": Treatment(action=Action.RECOMPUTE),
                    "layer_in": Treatment(action=Action.RECOMPUTE, ratio=0.5),
                }
            ),
            "whole or not at all",
        ),
    ],
)
def test_an_input_that_nobody_makes_again_is_refused(
    place: int, retention: Retention, said: str
) -> None:
    layout = replanned(sqrt_layout(), place, retention)
    with pytest.raises(InvalidSpec, match=said):
        LayoutPricer(job=job(), layout=layout, machine=WHERE).columns()


def test_zero_3_holds_the_weights_of_a_whole_segment() -> None:
    """Three layers of eight, of which `full` holds the one in use and the next."""
    gathered = {}
    for name in ("full", "sqrt"):
        choice = Uniform(recompute=name, dp=2, zero=3, zero_group=2, precision="fp32")
        layout = spell_out(choice, job().graph, 4)
        price = LayoutPricer(job=job(), layout=layout, machine=WHERE).columns()
        gathered[name] = float(price.gathered_bytes[0])
    hidden, wide = 512, 2048  # two norms, and four products with their biases
    layer = 12 * hidden**2 + 2 * 2 * hidden + 3 * hidden + hidden + wide + hidden
    assert gathered["sqrt"] - gathered["full"] == 4 * layer


def test_stages_with_the_same_layers_in_other_segments_differ() -> None:
    """Two layers inside one segment need more at once than in two segments."""
    whole, inside = recompute("*"), inner(job().graph.block("layer"))
    long = sqrt_layout()
    for place, retention in enumerate((whole, inside, inside, whole, whole), 1):
        long = replanned(long, place, retention)
    short = long
    for place, retention in enumerate((whole, inside, whole, inside, whole), 1):
        short = replanned(short, place, retention)
    deep, flat = (
        LayoutPricer(job=job(), layout=one, machine=WHERE).columns()
        for one in (replanned_tail(long), replanned_tail(short))
    )
    assert deep.saved_bytes == flat.saved_bytes
    assert deep.backward_working_bytes > flat.backward_working_bytes


def replanned_tail(layout: Layout) -> Layout:
    """Every layer from the sixth on its own."""
    for place in range(6, 9):
        layout = replanned(layout, place, recompute("*"))
    return layout


def test_only_an_input_that_is_kept_is_offloaded() -> None:
    block = job().graph.block("layer")
    away = Offload(activations=0.5)
    assert offloaded(inner(block), block, away) == inner(block)
    assert "layer_in" in offloaded(recompute("*"), block, away).tensors
