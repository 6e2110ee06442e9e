"""`simulate` about more than a step: whole runs, and one process for all replicas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from profiles.hardware import cluster, cluster_document
from profiles.models.catalog import model
from profiles.models.param_count import parameters
from tests.support.commanded import answered, refused, simulate

ASKED = ("--model", "gpt-13b", "--gpus", "64", "--tp", "4", "--pp", "2")


def test_a_whole_run_takes_its_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, *ASKED, "--tokens", "3e11")["training"]
    assert found["steps"] == pytest.approx(3e11 / (1536 * 2048))
    assert found["device_hours"] == pytest.approx(found["days"] * 24 * 64)
    assert found["rampup"] is None
    total = found["compute"]
    assert total["parameters"] == parameters(model("gpt-13b").spec).total
    assert total["by_parameters"]["flops"] == 6 * total["parameters"] * 3e11
    assert total["by_operators"]["convention"].startswith("megatron")


def test_a_run_over_images_counts_images(capsys: pytest.CaptureFixture[str]) -> None:
    """Convolutions use a parameter at many places: not 6 FLOPs of each an image."""
    asked = ("--model", "resnet-50", "--gpus", "8", "--tokens", "1e8")
    found = answered(capsys, *asked)
    whole = found["training"]
    assert whole["unit"] == "images"
    assert whole["compute"]["by_parameters"] is None
    flops = found["model_tflops_per_gpu"] * 1e12 * 8 * found["step_time_s"] / 256
    assert whole["compute"]["by_operators"]["flops"] == pytest.approx(1e8 * flops)
    assert simulate(*asked) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "100 M images: " in said
    assert "token" not in said.partition("training")[2]


def test_a_small_run_takes_more_than_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulate("--model", "gpt-tiny", "--gpus", "1", "--tokens", "1e6") == 0
    said = " ".join(capsys.readouterr().out.split())
    figures = re.search(r"tokens: (\S+) steps, (\S+) days, (\S+) device-hours", said)
    assert figures is not None
    assert all(float(one) > 0 for one in figures.groups())


def test_a_run_counts_its_flops_by_the_convention_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = (*ASKED, "--tokens", "3e11", "--flops-convention", "causal")
    own = answered(capsys, *asked)["training"]["compute"]["by_operators"]
    full = answered(capsys, *asked[:-2])["training"]["compute"]["by_operators"]
    assert own["convention"].startswith("causal")
    assert own["pf_days"] < full["pf_days"]


def test_failures_of_nodes_cost_days(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """By Young and Daly: a run on nodes that fail twice as often loses √2 times."""
    document = cluster_document(cluster("dgx-h100"))
    asked = ("--model", "gpt-13b", "--gpus", "64", "--tp", "4", "--tokens", "3e11")
    assert answered(capsys, *asked)["training"]["failures"] is None
    lost = []
    for hours in (2000, 1000):
        document["islands"][0] |= {
            "mtbf": {"value": hours, "unit": "h", "source": "ours"},
            "drive_write": {"value": 2, "unit": "GB/s", "source": "ours"},
        }
        (tmp_path / "ours.json").write_text(json.dumps(document))
        whole = answered(capsys, *asked, "--cluster", str(tmp_path / "ours.json"))
        found = whole["training"]["failures"]
        assert found["mtbf_h"] == pytest.approx(hours / 8)  # nodes
        states = 12 * whole["training"]["compute"]["parameters"]
        assert found["checkpoint_s"] == pytest.approx(states / (8 * 2e9))
        assert found["days"] == pytest.approx(
            whole["training"]["days"] / found["goodput"]
        )
        assert "write_bytes_per_s_per_device" not in found["assumed"]
        assert found["recovery"] == "checkpoint"
        restart_s = found["assumed"]["restart_s"] + found["checkpoint_s"]  # read again
        waiting = restart_s / (found["mtbf_h"] * 3600)
        lost.append(1 - found["goodput"] - waiting)
    assert lost[1] / lost[0] == pytest.approx(2**0.5, rel=0.02)


FAILING = (*ASKED, "--tokens", "3e11", "--mtbf", "1000")


def test_every_option_of_a_run_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Each changes its own member, and what follows from it."""
    plain = answered(capsys, *FAILING)["training"]
    lost = plain["failures"]
    assert lost["mtbf_h"] == pytest.approx(1000 / 8)

    def asked(*more: str) -> dict[str, Any]:
        found: dict[str, Any] = answered(capsys, *FAILING, *more)["training"]
        return found

    stored = asked("--storage-bandwidth", "100")["failures"]
    assert stored["checkpoint_s"] == pytest.approx(lost["checkpoint_bytes"] / 100e9)
    quick = asked("--restart-time", "30")["failures"]
    assert quick["goodput"] > lost["goodput"]
    assert "restart_s" not in quick["assumed"]
    saved = asked("--save-interval", "10")["failures"]
    assert saved["interval_s"] < lost["interval_s"]
    assert saved["goodput"] < lost["goodput"]
    spared = asked("--spare-nodes", "2", "--repair-time", "100")["failures"]
    assert spared["spares"]["repair_h"] == 100
    assert spared["device_hours"] == pytest.approx(spared["days"] * 24 * (64 + 16))
    logged = asked("--recovery", "log")["failures"]
    assert logged["recovery"] == "log"
    evaluated = asked("--eval-interval", "100", "--eval-iters", "10")
    assert evaluated["days"] > plain["days"]
    late = asked("--step-jitter", "0.02")
    assert late["days"] > plain["days"]
    clean = asked("--carbon-intensity", "0", "--pue", "1")
    assert clean["co2_kg"] == 0
    assert clean["energy_kwh"] == pytest.approx(plain["energy_kwh"] / 1.1)
    assert clean["assumed"] == {}


def test_drawn_runs_stand_beside_the_formula(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = (*FAILING, "--monte-carlo", "500")
    lost = answered(capsys, *asked)["training"]["failures"]
    drawn = lost["monte_carlo"]
    low, high = drawn["goodput_interval"]
    assert low <= drawn["goodput"] <= high
    assert lost["goodput"] == pytest.approx(drawn["goodput"], abs=1.5 * (high - low))
    assert drawn["failures"] == pytest.approx(lost["expected"], rel=0.1)
    assert answered(capsys, *asked)["training"]["failures"] == lost
    assert simulate(*asked, "--spare-nodes", "1") == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in ("500 runs: goodput", "not replica", "spare nodes 1, back 24 h"):
        assert words in said


RAMP = ("--tokens", "3e11", "--rampup-batch-size", "64", "64", "2000000")


def test_a_batch_ramps_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By options and by the layout file alike."""
    file = tmp_path / "layout.json"
    found = answered(capsys, *ASKED, *RAMP, "--out", str(file))
    whole = found["training"]
    rows = whole["rampup"]["batches"]
    assert [row["global_batch"] for row in rows] == list(range(64, 1537, 64))
    assert whole["steps"] == pytest.approx(sum(row["steps"] for row in rows))
    seconds = sum(row["steps"] * row["step_time_s"] for row in rows)
    assert whole["days"] * 86400 == pytest.approx(seconds)
    assert rows[-1]["step_time_s"] == found["step_time_s"]
    level = answered(capsys, *ASKED, *RAMP[:2])["training"]["days"]
    assert whole["rampup"]["added"] == pytest.approx(whole["days"] / level - 1)
    assert answered(capsys, str(file), *RAMP)["training"] == whole
    assert simulate(*ASKED, *RAMP) == 0
    assert "longer than with one batch" in " ".join(capsys.readouterr().out.split())


REPLICAS = ("--model", "gpt-350m", "--gpus", "8", "--global-batch", "64")


def test_one_process_is_compared_with_one_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = (*REPLICAS, "--compare-data-parallel")
    plain, found = answered(capsys, *REPLICAS), answered(capsys, *asked)
    both = found.pop("data_parallel")
    assert found == plain
    single, distributed = both["nn.DataParallel"], both["DistributedDataParallel"]
    assert sum(single["breakdown_s"].values()) == pytest.approx(single["step_time_s"])
    assert both["slowdown"] == single["step_time_s"] / distributed["step_time_s"] > 1
    first, others = single["memory"]
    assert (first["gpus"], others["gpus"]) == ("0", "1-7")
    assert first["total"] > distributed["memory"][0]["total"] > others["total"]
    assert single["fits"]
    assert distributed["fits"]
    assert simulate(*asked) == 0
    assert "times the" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((*ASKED, "--compare-data-parallel"), "leave --tp, --pp"),
        (
            (*REPLICAS, "--offload", "optimizer", "--compare-data-parallel"),
            "leave --offload out",
        ),
        (
            (*REPLICAS, "--compare-data-parallel", "--sweep", "zero=0"),
            "--compare-data-parallel is about one layout",
        ),
        ((*ASKED, *RAMP[2:]), "give its --tokens too"),
        ((*ASKED, *RAMP[:2], "--rampup-batch-size", "64", "64"), "3 arguments"),
        ((*ASKED, *RAMP[:-1], "0"), "must be a whole number >= 1"),
        ((*ASKED, *RAMP[:3], "2000", *RAMP[4:]), "start below it"),
        ((*ASKED, *RAMP[:4], "60", *RAMP[5:]), "choose a divisor of 1472"),
        ((*ASKED, *RAMP[:4], "4", *RAMP[5:]), "is not a multiple of 8"),
        ((*ASKED, "--mtbf", "100"), "--mtbf is about a whole run; give its --tokens"),
        ((*ASKED, *RAMP[:2], "--eval-iters", "9"), "give --eval-interval"),
        ((*ASKED, *RAMP[:2], "--monte-carlo", "9"), "give --mtbf HOURS"),
        ((*ASKED, *RAMP[:2], "--save-interval", "9"), "--save-interval: nobody says"),
        ((*FAILING, "--repair-time", "9"), "give --spare-nodes too"),
        ((*FAILING, "--recovery", "replica"), "no state has copies on two nodes"),
        ((*FAILING, "--recovery", "prayer"), "must be one of checkpoint, replica, log"),
        ((*FAILING, "--mtbf", "0"), "must be a number > 0"),
        ((*FAILING, "--pue", "0.9"), "must be a number >= 1"),
        ((*FAILING, "--monte-carlo", "1"), "from 2 to 100000"),
        ((*ASKED, *RAMP, "--sweep", "tp=1"), "--tokens is about one"),
    ],
)
def test_a_wrong_question_is_one_line_and_exit_2(
    argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, *argv)
