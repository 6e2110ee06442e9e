"""Operators of a recommended layout: proven to be split best, or split better."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.layout.layout import Layout
from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.operators.loop_sharding import loops_of, summands
from costmodel.options.pins import Pins
from costmodel.simulation.estimator import estimate
from costmodel.simulation.serialization import LayoutFile, file_document, parse_file
from costmodel.support.legality import module_violations
from costmodel.support.support_table import refusals
from planner.api import plan, solve
from planner.problem.problem import Staged
from planner.problem.solution import Operators, Solution
from planner.search.registry import SEARCHES
from planner.search.search import Limits
from planner.sharding.refine import with_own_shardings
from profiles.errors import Contradiction, InvalidSpec
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job
from tests.support.problems import problem

A100 = cluster("dgx-a100-80gb")


def job(name: str, batch: int = 64) -> Job:
    return Job(model=name, spec=model(name).spec, seq_len=2048, global_batch=batch)


def planned(name: str, pins: Pins, *, batch: int = 64, search: str = "") -> Solution:
    chosen = search or "branch-and-bound"
    return plan(job(name, batch), A100, gpus=4, pins=pins, search=chosen)


@pytest.fixture(scope="module")
def small() -> Solution:
    """Too much tensor parallelism for so small a model, which shardings make up for."""
    return planned("gpt-125m", Pins(tp=4))


def operators(found: Solution) -> Operators:
    assert found.operators is not None
    return found.operators


def layout_of(found: Solution) -> Layout:
    assert found.best is not None
    return found.best.estimate.layout


def test_better_shardings_replace_the_preset(small: Solution) -> None:
    known = operators(small)
    assert known.preset_value is not None
    assert known.preset_lower is not None
    assert small.value < 0.8 * known.preset_value
    assert small.lower <= small.value
    assert isinstance(small.best, Staged)
    plans = dict(
        zip(
            layout_of(small).stages[0].layers,
            layout_of(small).stages[0].plans,
            strict=True,
        )
    )
    assert all(bool(one.modules) == name.isdigit() for name, one in plans.items())


def test_what_replaces_it_is_priced_by_the_simulation_and_can_be_executed(
    small: Solution,
) -> None:
    layout = layout_of(small)
    again = estimate(job("gpt-125m"), A100, layout)
    assert again.step_time_s == small.value
    refused = refusals(layout, job("gpt-125m"))
    assert [one.split()[0] for one in refused] == ["dropout"], "of tensor parallelism"


def test_the_layout_file_reads_back(small: Solution) -> None:
    layout = layout_of(small)
    file = LayoutFile(
        job={"model": "gpt-125m", "seq_len": 2048, "global_batch": 64},
        cluster="dgx-a100-80gb",
        gpus=4,
        profiles=(),
        layout=layout,
    )
    document = file_document(file)
    assert len(document["layout"]["shardings"]) == 1
    assert parse_file(document).layout == layout
    document["layout"]["stages"][0]["layer_plans"][1]["modules"] = 1
    with pytest.raises(Exception, match=r"layout.shardings has 1, numbered from 0"):
        parse_file(document)


def test_megatrons_split_is_confirmed() -> None:
    found = planned("gpt-13b", Pins(tp=4, micro_batch=1))
    (proof,) = operators(found).proofs
    assert operators(found).preset_value is None
    assert (proof.block, proof.tp, proof.status) == ("layer", 4, "optimal")
    assert proof.gap == 0
    assert proof.best_s == pytest.approx(proof.own_s)
    assert not any(one.modules for one in layout_of(found).stages[0].plans)


@pytest.mark.parametrize(
    ("name", "pins", "search"),
    [
        ("gpt-125m", Pins(tp=1), ""),
        ("gpt-125m", Pins(tp=4), "fsdp"),
        ("gpt-125m", Pins(tp=2, cp=2), ""),
    ],
)
def test_nothing_is_said_where_no_preset_splits(
    name: str, pins: Pins, search: str
) -> None:
    if search:
        pins = Pins()
    assert planned(name, pins, search=search).operators is None


def test_nothing_is_proven_where_the_presets_gathers_travel_in_8_bits() -> None:
    """Explicit shardings are priced with 16 bits: that would be no fair comparison."""
    pins = Pins(tp=4, sequence_parallel=True)
    for framework, proven in (("megatron-lm", True), ("megatron-core", False)):
        where = machine(cluster("dgx-h100"), load_framework(framework))
        posed = replace(problem("gpt-1.3b", 4, where=where, pins=pins), precision="fp8")
        found = solve(posed, SEARCHES["branch-and-bound"], Limits(runners_up=0))
        assert found.best is not None
        known = with_own_shardings(posed, found).operators
        assert (known is not None) == proven, framework


def test_modules_that_cannot_be_are_refused_in_words(small: Solution) -> None:
    layout = layout_of(small)
    modules = next(one.modules for one in layout.stages[0].plans if one.modules)
    asked = job("gpt-125m")

    def said(*found: object) -> str:
        edited = layout.sharded(dict.fromkeys(map(str, range(12)), tuple(found)))  # type: ignore[arg-type]
        with pytest.raises(Contradiction) as raised:
            estimate(asked, A100, edited)
        return str(raised.value)

    assert "in order" in said(*modules[1:], modules[0])
    other = replace(modules[0], axes=("dp",))
    assert "tp is the only axis" in said(other, *modules[1:])
    split = max(n for n, one in enumerate(modules) if one.output.made != ("whole",))
    output = replace(modules[split].output, made=("whole",), handed=("whole",))
    whole = replace(modules[split], output=output)
    asked_for = said(*modules[:split], whole, *modules[split + 1 :])
    assert "of no split of one of its loops" in asked_for
    assert not list(module_violations(layout, asked))


def test_placements_that_no_loop_has_are_refused() -> None:
    block = job("gpt-125m").graph.block("layer")
    found = planned("gpt-125m", Pins(tp=4))
    modules = next(
        one.modules for one in layout_of(found).stages[0].plans if one.modules
    )
    for operator, one in zip(block.operators, modules, strict=True):
        (loop,) = loops_of(one, operator)
        assert loop
        swapped = replace(one, output=replace(one.output, made=("partial",)))
        if one.output.made != ("partial",):
            with pytest.raises(InvalidSpec, match="split of one of its loops"):
                loops_of(swapped, operator)


def test_gradients_of_what_saw_a_part_are_summands() -> None:
    block = job("gpt-125m").graph.block("layer")
    up, down = block.operator("mlp_up"), block.operator("mlp_down")
    assert summands(up, "batch", "batch") == {"weight", "bias"}
    assert summands(up, "ffn", "ffn") == frozenset()
    assert summands(down, "ffn", "sequence") == {"bias"}
    assert summands(down, "ffn", "whole") == frozenset()
    assert summands(block.operator("input_norm"), "sequence", "sequence")
