"""`plan --why-not tp=4`, and `--tokens N --days D --budget USD` in place of --gpus."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costmodel.options import Pins
from planner.analysis import parse_pins
from planner.cli import plan
from profiles.errors import InvalidSpec, UnknownName
from profiles.hardware import cluster, cluster_document

Ask = Callable[..., dict[str, Any]]
SMALL = ("gpt-350m", "--top", "0", "--executable")


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def asking(*argv: str) -> dict[str, Any]:
        assert plan.run([*SMALL, *argv, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return asking


def test_what_a_pin_loses_is_the_plan_with_it(ask: Ask) -> None:
    asked = ("--gpus", "8", "--global-batch", "64")
    found = ask(*asked, "--why-not", "tp=4", "--why-not", "tp=3", "--why-not", "dp=8")
    pinned, impossible, own = found["why_not"]
    best = ask(*asked, "--tp", "4")
    assert pinned["layout"] == best["layout"]
    assert pinned["estimate"]["step_time_s"] == best["estimate"]["step_time_s"]
    ratio = best["estimate"]["step_time_s"] / found["estimate"]["step_time_s"]
    assert pinned["slower"] == pytest.approx(ratio - 1)
    assert "tensor parallel" in pinned["because"]
    assert impossible["layout"] is None
    assert "tp=3 does not divide" in impossible["because"]
    assert found["layout"]["summary"]["dp"] == 8
    assert own["slower"] == 0


def test_pins_are_read_as_options_are() -> None:
    found = parse_pins("--tp=4, zero-group=2,sequence-parallel=off", Pins(pp=2))
    assert found == Pins(pp=2, tp=4, zero_group=2, sequence_parallel=False)
    for wrong, error in (
        ("tp", InvalidSpec),
        ("tp=", InvalidSpec),
        ("tp=0", InvalidSpec),
        ("width=4", UnknownName),
        ("sequence-parallel=maybe", InvalidSpec),
    ):
        with pytest.raises(error):
            parse_pins(wrong, Pins())


RUN = ("--tokens", "10B", "--global-batch", "96", "--tp", "1", "--pp", "1")


@pytest.fixture
def where(tmp_path: Path) -> str:
    """Four nodes, so that few numbers of GPUs are tried."""
    document = cluster_document(cluster("dgx-a100-80gb"))
    document["islands"][0]["nodes"] = 4
    (tmp_path / "ours.json").write_text(json.dumps(document))
    return str(tmp_path / "ours.json")


def test_the_fewest_gpus_within_days_are_found(ask: Ask, where: str) -> None:
    days = 0.4
    found = ask(*RUN, "--cluster", where, "--days", str(days))
    tried = found["sizing"]["tried"]
    (chosen,) = (one for one in tried if one["gpus"] == found["sizing"]["gpus"])
    assert found["gpus"] == chosen["gpus"]
    assert found["training"]["days"] == pytest.approx(chosen["days"])
    assert chosen["days"] <= days
    fewer = [one for one in tried if one["gpus"] < chosen["gpus"]]
    assert fewer
    assert all(one["days"] is None or one["days"] > days for one in fewer)


def test_the_most_gpus_that_a_budget_pays_are_found(ask: Ask, where: str) -> None:
    cheapest = ask(*RUN, "--cluster", where, "--days", "1000")["training"]["dollars"]
    budget = cheapest * 1.02
    found = ask(*RUN, "--cluster", where, "--budget", f"{budget:.2f}")
    tried = found["sizing"]["tried"]
    assert found["training"]["dollars"] <= budget
    more = [one for one in tried if one["gpus"] > found["gpus"]]
    assert all(one["dollars"] is None or one["dollars"] > budget for one in more)


def test_failures_count_where_they_are_known(ask: Ask) -> None:
    """Of the numbers of GPUs that are tried, and of the plan that is taken."""
    failing = (*RUN, "--days", "1000", "--mtbf", "20", "--restart-time", "1800")
    found = ask(*failing)
    lost = found["training"]["failures"]
    assert lost["days"] > 1.02 * found["training"]["days"]
    tried = {one["gpus"]: one for one in found["sizing"]["tried"]}
    assert tried[found["gpus"]]["days"] == pytest.approx(lost["days"])
    assert tried[found["gpus"]]["dollars"] == pytest.approx(lost["dollars"])
    best = max(lost["recoveries"], key=lambda one: one["goodput"] or 0)
    assert lost["recovery"] == best["recovery"]


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ("--days 3", 2, "give its --tokens too"),
        ("--days 3 --tokens 1B --gpus 8", 2, "leave it out"),
        ("--days 3 --tokens 1B --gpus 8,16", 2, "leave one out"),
        ("--days 0 --tokens 1B", 2, "must be a number > 0"),
        ("--budget 10 --tokens 1B --cluster mi300x-8x", 2, "no price is known"),
        (
            "--budget 1 --tokens 1T --tp 1 --pp 1 --cluster p4d.24xlarge",
            1,
            "; cheapest: --gpus 1, ",
        ),
        ("--days 1 --tokens 1T --tp 3 --cluster cpu", 1, "does not divide"),
        ("--gpus 8 --why-not tp", 2, "write OPTION=VALUE"),
        ("--gpus 8,16 --why-not tp=2", 2, "about one plan"),
    ],
)
def test_what_cannot_be_asked_is_said(
    argv: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan.run([*SMALL, *argv.split()]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.splitlines()[-1]
