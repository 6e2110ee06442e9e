"""With `--framework` a plan holds what that framework can run, and no more."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.cli import simulate
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.framework import DEFAULT, frameworks
from costmodel.support.framework_features import BASE, capabilities
from planner.cli import plan
from planner.problem.problem import Problem
from planner.problem.space import Space
from planner.report.frameworks import MAIN
from profiles.errors import MeshwrightError
from tests.support.problems import all_pins, on, problem

OTHERS = [name for name in frameworks() if name != DEFAULT]
SMALL = ("--model", "gpt-350m", "--gpus", "4", "--global-batch", "16")
SOME = 12  # candidates spelled out of each space
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def asking(*argv: str) -> tuple[int, str, str]:
        code = plan.run(list(argv))
        return code, *capsys.readouterr()

    return asking


def answer(ask: Ask, *argv: str) -> dict[str, Any]:
    code, out, err = ask(*argv, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def limited(name: str, **more: Any) -> Problem:
    asked = problem("gpt-tiny", 4, global_batch=4, where=on(framework=name), **more)
    return replace(asked, runs_on=name)


@pytest.mark.parametrize("name", OTHERS)
def test_every_candidate_runs_and_none_that_runs_is_left_out(name: str) -> None:
    """The space is that of all software, but for what the framework lacks."""
    asked = limited(name)
    precision = capabilities(name).has["precision"].values[-1]
    asked = replace(asked, precision="bf16" if precision != "fp16" else "fp16")
    if not asked.offers("precision", asked.precision):
        asked = replace(asked, precision="fp32")
    own = Space(problem=asked)
    assert asked.capabilities is not None
    wanted = set()
    for choice in _whole_space(asked.precision):
        if choice.recompute == "sqrt" and not asked.offers("recompute", "segments"):
            continue  # of one layer it is `full`, which is a candidate of its own
        if not asked.capabilities.lacks(choice, asked.job):
            wanted.add(choice)
    rows = own.leaves(own.branches)
    found = {own.choice(rows, row) for row in range(len(rows))}
    assert found == wanted
    assert found


@cache
def _whole_space(precision: str) -> list[Uniform]:
    """What no framework limits."""
    asked = replace(problem("gpt-tiny", 4, global_batch=4), precision=precision)
    space = Space(problem=asked)
    rows = space.leaves(space.branches)
    return [space.choice(rows, row) for row in range(len(rows))]


@given(
    pins=all_pins(),
    name=st.sampled_from(OTHERS),
    model=st.sampled_from(("gpt-tiny", "gpt-mini", "mixtral-8x7b")),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None)
def test_layouts_of_a_framework_lack_nothing(
    pins: Any, name: str, model: str, seed: int
) -> None:
    asked = problem(model, 8, global_batch=8, where=on(framework=name), pins=pins)
    asked = replace(asked, runs_on=name)
    space = Space(problem=asked)
    try:
        rows = space.leaves(space.branches)
    except MeshwrightError:
        assume(False)
    rng = np.random.default_rng(seed)
    for row in rng.permutation(len(rows))[:SOME].tolist():
        choice = space.choice(rows, row)
        layout = spell_out(choice, asked.job.graph, asked.job.global_batch)
        assert not asked.refusals(layout), choice


@pytest.mark.parametrize("name", [one for one in MAIN if one != DEFAULT])
def test_a_plan_for_a_framework_is_one_that_it_runs(ask: Ask, name: str) -> None:
    """The answer and its runners-up are checked against the table by `check`."""
    found = answer(ask, *SMALL, "--framework", name)
    assert found["software"] == {"name": name, "lacks": []}


def test_where_memory_is_short_some_layers_of_each_stage_are_made_again(
    ask: Ask,
) -> None:
    """Megatron's --recompute-method block: one K for all stages; named operators by
    stage are ours alone."""
    argv = ("--model", "gpt-13b", "--gpus", "4", "--global-batch", "64")
    pins = ("--schedule", "1f1b", "--pp", "2", "--micro-batch", "4")
    found = answer(ask, *argv, *pins, "--framework", "megatron-lm-2021")
    stages = found["layout"]["stages"]
    plans = [
        {one["layers"]: one["retention"] for one in stage["layer_plans"]}
        for stage in stages
    ]
    assert len(stages) == 2
    assert any(again for each in plans for again in each.values())
    assert any(not again for each in plans for again in each.values())
    assert found["bound"]["added"]["gain"] > 0.01


@pytest.mark.parametrize(
    ("name", "pins", "said"),
    [
        (
            "deepspeed",
            ("--schedule", "interleaved"),
            "deepspeed has no interleaved schedule; it has 1f1b",
        ),
        (
            "deepspeed",
            ("--virtual-stages", "2", "--pp", "2"),
            "deepspeed has no interleaved schedule; it has 1f1b",
        ),
        ("deepspeed", ("--zero", "3", "--pp", "2"), "ZeRO-2 and ZeRO-3 do not go"),
        ("deepspeed", ("--cp-kind", "ring"), "it has ulysses"),
        ("deepspeed", ("--sequence-parallel",), "no sequence parallelism"),
        ("fsdp2", ("--tp", "2"), "fsdp2 has no tensor parallelism; it has tp 1"),
        ("fsdp2", ("--zero", "1"), "fsdp2 has no ZeRO-1; it has ZeRO-2 or 3"),
        ("torchtitan", ("--recompute", "mlp_up,qkv"), "no recompute by name"),
        (
            "torchtitan",
            ("--no-sequence-parallel",),
            "no tensor parallelism without sequence parallelism",
        ),
        (
            "nemo",
            ("--recompute", "cheap-ops"),
            "nemo has no recompute by name; it has selective or full or segments",
        ),
        ("nanotron", ("--recompute-layers", "3"), "it has it in all layers"),
        ("megatron-core", ("--any-stage",), "has one mesh for all stages"),
        ("megatron-lm-2021", ("--zero", "1"), "it has ZeRO-0"),
        ("torchtitan", ("--precision", "fp16"), "no fp16 training"),
    ],
)
def test_pins_outside_are_refused_with_the_nearest(
    ask: Ask, name: str, pins: tuple[str, ...], said: str
) -> None:
    if "--recompute-layers" in pins:
        pins = (*pins, "--recompute", "full")
    code, out, err = ask(*SMALL, "--framework", name, *pins)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    priced, _, _ = ask(*SMALL, "--framework", name, *pins, "--any-mechanism")
    assert priced == 0


def test_ours_by_name_is_what_execute_carries_out(ask: Ask) -> None:
    found = answer(ask, *SMALL, "--framework", DEFAULT)
    assert found["bound"]["executable"] is True
    assert answer(ask, *SMALL)["bound"]["executable"] is False


def test_the_first_screen_says_for_which_software(ask: Ask) -> None:
    _, out, _ = ask(*SMALL)
    assert "for meshwright's `execute`" in " ".join(out.split())
    _, out, _ = ask(*SMALL, "--framework", "nemo")
    assert "for nemo " in " ".join(out.split())
    _, out, _ = ask(
        *SMALL,
        *("--framework", "deepspeed", "--schedule", "interleaved", "--any-mechanism"),
    )
    assert "deepspeed, which cannot run it: deepspeed has no interleaved" in out


@pytest.mark.slow
def test_frameworks_are_compared(ask: Ask) -> None:
    found = answer(ask, *SMALL, "--compare-frameworks")
    named = {one["framework"]: one for one in found["frameworks"]}
    assert named.keys() == set(MAIN)
    assert named[DEFAULT]["estimate"] == found["estimate"]
    seconds = [
        one["estimate"]["step_time_s"] for one in found["frameworks"] if one["estimate"]
    ]
    assert seconds == sorted(seconds)
    _, out, _ = ask(*SMALL, "--compare-frameworks", "--schedule", "interleaved")
    assert "deepspeed has no interleaved schedule" in " ".join(out.split())


def test_simulate_prices_what_a_framework_lacks_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [*SMALL, "--pp", "2", "--virtual-stages", "2", "--framework", "deepspeed"]
    said = "deepspeed has no interleaved schedule; it has 1f1b"
    assert simulate.run(argv) == 0
    assert said in capsys.readouterr().err
    assert simulate.run([*argv, "--json"]) == 0
    priced = json.loads(capsys.readouterr().out)
    assert priced["warnings"] == [said]
    assert simulate.run([*argv[:-2], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


def test_the_base_of_all_is_no_framework(ask: Ask) -> None:
    code, _, err = ask(*SMALL, "--framework", BASE)
    assert code == 2
    assert "framework" in err


def test_the_schedule_of_a_single_stage_is_no_pin_outside(ask: Ask) -> None:
    """fsdp2 has no pipelines; what it recommends says 1f1b of its one stage."""
    argv = ("--model", "gpt-tiny", "--gpus", "2", "--framework", "fsdp2")
    found, pinned = (answer(ask, *argv, *more) for more in ((), ("--schedule", "1f1b")))
    assert found["layout"]["schedule"] == "1f1b"
    assert pinned["layout"] == found["layout"]


def test_no_cut_recomputes_in_some_layers_where_a_framework_treats_all_alike(
    ask: Ask,
) -> None:
    asked = "--model qwen3-0.6b --gpus 2 --cluster rtx4090-8x --global-batch 16"
    argv = [*asked.split(), "--framework", "deepspeed"]
    found = answer(ask, *argv)  # what is recommended is checked against the framework
    assert found["estimate"]["fits"]
