"""How many GPUs: a plan for each, the same as asked alone."""

from __future__ import annotations

import json
from collections.abc import Callable

import click
import pytest

from planner.options import gpu_counts

Ask = Callable[..., tuple[int, str, str]]
TINY = ("--model", "gpt-tiny")


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("8", 8),
        ("8..512", (8, 16, 32, 64, 128, 256, 512)),
        ("6..50", (6, 12, 24, 48)),
        ("4..4", (4,)),
        ("8, 3,8", (8, 3)),
    ],
)
def test_numbers_of_gpus_are_read_as_written(text: str, counts: object) -> None:
    assert gpu_counts(text) == counts


@pytest.mark.parametrize(
    "text", ["", "0", "8..", "..8", "8..4", "8,,9", "8,x", "a..b", "1..2..4", "0,8"]
)
def test_what_are_no_numbers_of_gpus_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        gpu_counts(text)


def test_no_more_than_can_be_shown() -> None:
    with pytest.raises(click.BadParameter, match="at most 64"):
        gpu_counts(",".join(map(str, range(1, 100))))


def test_each_plan_is_the_one_asked_alone(asking: Ask) -> None:
    code, out, err = asking(*TINY, "--gpus", "1,4", "--tokens", "1e9", "--json")
    assert (code, err) == (0, "")
    both = json.loads(out)["plans"]
    assert [one["gpus"] for one in both] == [1, 4]
    for found in both:
        alone = json.loads(asking(*TINY, "--gpus", str(found["gpus"]), "--json")[1])
        assert found["layout"] == alone["layout"]
        assert found["estimate"] == alone["estimate"]
        assert found["bound"] == alone["bound"]
        steps = 1e9 / (256 * found["job"]["global_batch"])
        days = steps * found["estimate"]["step_time_s"] / 86400
        assert found["training"]["days"] == pytest.approx(days)
        assert found["training"]["dollars"] > 0


def test_a_size_without_a_layout_says_why_in_its_row(asking: Ask) -> None:
    where = ("--model", "gpt-13b", "--gpus", "1,8", "--global-batch", "64")
    argv = (*where, "--top", "0")
    code, out, _ = asking(*argv, "--json")
    small, large = json.loads(out)["plans"]
    assert code == 0
    assert small["layout"] is None
    assert small["infeasible"]["constraint"].startswith("memory: ")
    assert small["search"]["status"] == "infeasible"
    assert large["infeasible"] is None
    table = " ".join(asking(*argv)[1].split())
    assert "none: memory: the smallest peak" in table
    assert "fastest: 8 GPUs" in table


def test_pins_that_go_with_some_sizes_only(asking: Ask) -> None:
    code, out, _ = asking(*TINY, "--gpus", "3,4", "--tp", "2", "--json")
    odd, even = json.loads(out)["plans"]
    assert code == 0
    assert "tp 2 does not divide 3 GPUs" in odd["infeasible"]["constraint"]
    assert even["layout"]["summary"]["tp"] == 2


def test_pins_that_go_with_no_size_are_a_wrong_question(asking: Ask) -> None:
    code, out, err = asking(*TINY, "--gpus", "3,5", "--tp", "2", "--json")
    assert (code, out) == (2, "")
    assert "does not divide 3 GPUs" in err


def test_no_size_fits_is_exit_1_with_all_rows(asking: Ask) -> None:
    code, out, err = asking(
        *("--model", "gpt-175b", "--gpus", "1,2", "--global-batch", "64", "--json")
    )
    found = json.loads(out)
    assert (code, found["layout"], len(found["plans"])) == (1, None, 2)
    assert found["infeasible"]["constraint"].startswith("memory: ")
    assert "nearest that works" in err


@pytest.mark.parametrize(
    "more",
    [
        ("--out", "layout.json"),
        ("--compare-searches",),
        ("--maximize", "layers"),
        ("--explain",),
        ("--probe", "2"),
    ],
)
def test_questions_about_one_plan_take_one_size(
    asking: Ask, more: tuple[str, ...]
) -> None:
    code, out, err = asking(*TINY, "--gpus", "1,2", *more)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert more[0] in err


def test_stages_that_cannot_differ_are_refused_before_any_search(asking: Ask) -> None:
    code, out, err = asking(*TINY, "--gpus", "2,4", "--any-stage", "--executable")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--any-stage" in err
    assert "--any-mechanism" in err


def test_tokens_are_days_and_dollars(asking: Ask) -> None:
    argv = (*TINY, "--gpus", "2", "--objective", "time-to-train", "--tokens", "1e12")
    code, out, _ = asking(*argv, "--json")
    found = json.loads(out)
    whole = found["training"]
    seconds = whole["steps"] * found["estimate"]["step_time_s"]
    assert code == 0
    assert whole["days"] * 86400 == pytest.approx(seconds)
    assert whole["dollars"] == pytest.approx(5.12 * whole["device_hours"])
    assert "training" in asking(*argv)[1]


@pytest.mark.parametrize("tokens", ["0", "-1", "nan", "1e30"])
def test_impossible_tokens_are_refused(asking: Ask, tokens: str) -> None:
    assert asking(*TINY, "--gpus", "2", "--tokens", tokens)[0] == 2


def test_the_cheapest_token_is_asked_for_where_there_is_a_price(asking: Ask) -> None:
    argv = (*TINY, "--gpus", "1,2", "--objective", "cost", "--json")
    code, out, _ = asking(*argv)
    assert code == 0
    for found in json.loads(out)["plans"]:
        dollars = found["bound"]["value"]
        rate = found["estimate"]["tokens_per_s_per_gpu"]
        assert dollars == pytest.approx(5.12 / 3600 / rate)
    code, out, err = asking(*argv, "--cluster", "cpu")
    assert (code, out) == (2, "")
    assert "no price is known" in err
