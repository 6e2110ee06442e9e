"""Layers that hold the same weights, on one stage and on several."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.stages.layout_cost import LayoutPricer
from costmodel.stages.pipeline_p2p import layout_tied_sync, shared_parameters
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.graph import EVERY_OPERATOR
from profiles.models.job import Job
from profiles.models.param_count import parameters
from profiles.models.spec import BertSpec

CLUSTER = cluster("dgx-a100-80gb")
ON = machine(CLUSTER)


def job(name: str, shared_layers: int | None = None) -> Job:
    known = model(name)
    if shared_layers is not None:
        assert isinstance(known.spec, BertSpec)
        known = replace(known, spec=replace(known.spec, shared_layers=shared_layers))
    return known.job(global_batch=16)


def held(one: Job, pp: int) -> np.ndarray:
    layout = spell_out(Uniform(pp=pp, zero=0), one.graph, one.global_batch)
    found = LayoutPricer(job=one, layout=layout, machine=ON).columns()
    return np.asarray(found.parameters)


def priced(one: Job) -> Estimate:
    layout = spell_out(Uniform(zero=0), one.graph, one.global_batch)
    return estimate(one, CLUSTER, layout, on=ON)


@pytest.mark.parametrize("name", ["albert-large", "bert-base", "t5-small", "vit-base"])
def test_one_stage_has_the_parameters_of_the_model(name: str) -> None:
    one = job(name)
    assert held(one, 1) == pytest.approx([parameters(one.spec).total])


@pytest.mark.parametrize(("group", "pp"), [(24, 4), (8, 4), (8, 3), (4, 5)])
def test_a_stage_has_each_set_of_weights_once(group: int, pp: int) -> None:
    one = job("albert-large", shared_layers=group)
    layout = spell_out(Uniform(pp=pp, zero=0), one.graph, one.global_batch)
    sets = [
        len({int(name) // group for name in stage.layers if name.isdigit()})
        for stage in layout.stages
    ]
    each = float(shared_parameters(one.graph, ("0", EVERY_OPERATOR), 1))
    assert each == 12 * 1024**2 + 13 * 1024
    ends = held(job("albert-large", shared_layers=24), pp) - each
    assert held(one, pp) == pytest.approx(np.array(sets) * each + ends)


@pytest.mark.row(
    "D2",
    "all-reduces of the shared block a step on p = 4",
    expected="one, of the block",
    evidence="computed",
)
def test_a_shared_block_is_summed_over_its_stages_once_a_step() -> None:
    """ALBERT on four stages (Lan et al., ICLR 2020): beside the table that both ends
    hold, one all-reduce of the block's gradient over all four."""
    one = job("albert-xxlarge")
    layout = spell_out(Uniform(pp=4, zero=0), one.graph, one.global_batch)
    found = layout_tied_sync(layout, one, ON).seconds
    block = 12 * 4096**2 + 13 * 4096
    taken = ON.collective(
        "all_reduce", np.asarray(block * 4.0), ranks=np.asarray(4), near=np.asarray(4)
    )
    assert found[1] == pytest.approx(float(ON.once_a_step(taken).seconds))
    assert found[2] == found[1] < found[0] == found[3]  # the ends sum the table too


def test_shared_layers_compute_and_keep_as_many_as_others() -> None:
    shared, own = job("albert-large"), job("albert-large", shared_layers=1)
    one, other = priced(shared), priced(own)
    assert one.model_flops == other.model_flops
    less = other.step_time_s - one.step_time_s
    assert 0 < less < 0.02 * other.step_time_s  # the optimizer's step
    first, second = (found.document()["memory"][0] for found in (one, other))
    assert first["activations"] == pytest.approx(second["activations"])
    assert second["optimizer"] / first["optimizer"] == pytest.approx(
        parameters(own.spec).total / parameters(shared.spec).total
    )


def test_three_layers_that_hold_a_table_sum_it_together() -> None:
    """T5 on three stages: encoder, decoder and head each have the table."""
    one = job("t5-large")
    layout = spell_out(Uniform(pp=4, zero=0), one.graph, one.global_batch)
    found = layout_tied_sync(layout, one, ON).seconds
    assert found[1] == 0 < found[0] == found[2] == found[3]
