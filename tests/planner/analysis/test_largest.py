"""The largest sequence, batch or depth that fits: it does, and the next does not."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.options.pins import Pins
from planner.analysis.largest import fits_somehow, last_true, maximize
from planner.api import solve
from planner.problem.question import Asked, with_layers
from planner.problem.solution import Status
from planner.search.registry import SEARCHES
from planner.search.search import Limits
from profiles.commandline.options import JobOptions
from profiles.errors import Unsupported
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model

Ask = Callable[..., tuple[int, str, str]]


def asked(name: str, gpus: int, where: str = "dgx-a100-80gb", /, **pins: int) -> Asked:
    return Asked(
        model=model(name),
        cluster=cluster(where),
        where=where,
        job=JobOptions(model=name, gpus=gpus),
        pins=Pins(**pins),  # type: ignore[arg-type]
    )


@given(st.integers(0, 300), st.integers(1, 400), st.integers(1, 300))
def test_bisection_finds_the_last_that_holds(last: int, start: int, most: int) -> None:
    tried: list[int] = []

    def holds(number: int) -> bool:
        tried.append(number)
        return number <= last

    assert last_true(holds, start, most) == min(last, most)
    assert len(tried) == len(set(tried)), "nothing is tried twice"
    assert len(tried) <= 20


@pytest.mark.parametrize(
    ("quantity", "pins"),
    [
        ("layers", {"tp": 8, "micro_batch": 1, "zero": 0}),
        ("seq-len", {"tp": 8, "micro_batch": 1, "zero": 0}),
        ("global-batch", {"tp": 8, "micro_batches": 1, "zero": 0}),
    ],
)
def test_the_largest_fits_and_the_next_does_not(
    quantity: str, pins: dict[str, int]
) -> None:
    question = asked("gpt-13b", 8, **pins)
    found = maximize(question, quantity)
    assert found.value is not None
    assert found.too_large == found.value + found.unit
    best = solve(found.posed.problem, SEARCHES["branch-and-bound"], Limits())
    assert best.status is not Status.INFEASIBLE
    name = quantity.replace("-", "_")
    beyond = question.pose(**{name: found.too_large}).problem
    assert not fits_somehow(beyond)
    none = solve(beyond, SEARCHES["branch-and-bound"], Limits())
    assert none.status is Status.INFEASIBLE


def test_what_does_not_fit_as_asked_is_made_smaller() -> None:
    found = maximize(asked("gpt-175b", 8, tp=8, dp=1, cp=1, zero=1), "layers")
    assert found.value is not None
    assert 0 < found.value < 96


def test_accumulation_takes_any_batch(asking: Ask) -> None:
    found = maximize(asked("gpt-tiny", 2), "global-batch")
    assert (found.value, found.too_large) == (None, None)
    argv = ("--model", "gpt-tiny", "--gpus", "2", "--maximize", "global-batch")
    code, out, _ = asking(*argv, "--json")
    assert code == 0
    assert json.loads(out)["maximized"]["value"] is None
    assert "pin --micro-batches" in " ".join(asking(*argv)[1].split())


def test_the_plan_is_at_the_largest(asking: Ask) -> None:
    argv = ("--model", "gpt-13b", "--gpus", "8", "--tp", "8", "--maximize", "layers")
    code, out, _ = asking(*argv, "--micro-batch", "1", "--json")
    found = json.loads(out)
    layers = found["maximized"]["value"]
    assert code == 0
    assert found["job"]["model"]["layers"] == layers
    assert found["estimate"]["fits"]
    assert str(layers - 1) in found["layout"]["stages"][-1]["layers"]


def test_unlike_layers_stay_in_whole_turns() -> None:
    pins = {"tp": 8, "pp": 1, "cp": 1, "ep": 8, "micro_batch": 1, "zero": 0}
    found = maximize(asked("llama4-maverick", 64, **pins), "layers")
    assert found.unit > 1
    assert found.value is not None
    assert found.value % found.unit == 0


def test_nothing_fits_at_all_is_exit_1(asking: Ask) -> None:
    argv = ("--model", "gpt-175b", "--gpus", "1", "--maximize", "global-batch")
    code, out, err = asking(*argv, "--micro-batches", "1", "--json")
    found = json.loads(out)
    assert (code, found["layout"]) == (1, None)
    assert found["infeasible"]["constraint"].startswith("memory: ")
    assert err.startswith("plan: no layout")


@pytest.mark.parametrize("name", ["hidden", "seqlen", ""])
def test_other_quantities_are_refused(asking: Ask, name: str) -> None:
    argv = ("--model", "gpt-tiny", "--gpus", "2", "--maximize", name)
    code, out, err = asking(*argv)
    assert (code, out) == (2, "")
    assert "seq-len, global-batch, layers" in err


def test_layers_are_of_decoders() -> None:
    assert with_layers(model("gpt-13b"), 40) == model("gpt-13b")
    assert with_layers(model("gpt-13b"), 41).name == "gpt-13b-41-layers"
    with pytest.raises(Unsupported, match="decoders"):
        with_layers(model("bert-large"), 3)
