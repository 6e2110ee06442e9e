"""`plan` over a range: sweeps, scaling curves, other clusters."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

Ask = Callable[..., tuple[int, str, str]]
TINY = ("gpt-tiny", "--gpus", "8")


def test_each_point_of_a_sweep_is_the_plan_asked_alone(asking: Ask) -> None:
    axes = ("--sweep", "cluster=dgx-h100,dgx-a100-80gb", "--sweep", "tp=1,2")
    code, out, err = asking(*TINY, *axes, "--json")
    assert code == 0, err
    rows = json.loads(out)["sweep"]
    assert len(rows) == 4
    for row in rows:
        point = row["point"]
        alone = (*TINY, "--cluster", point["cluster"], "--tp", str(point["tp"]))
        found = json.loads(asking(*alone, "--json")[1])
        assert row["estimate"]["layout"] == found["layout"]
        assert row["estimate"]["step_time_s"] == found["estimate"]["step_time_s"]


def test_a_point_without_a_plan_says_why(asking: Ask, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    asked = ("--sweep", "tp=1,3", "--csv", str(file))
    code, out, _ = asking(*TINY, *asked, "--json")
    assert code == 0
    good, bad = json.loads(out)["sweep"]
    assert good["error"] is None
    assert "tp" in bad["error"]
    lines = list(csv.DictReader(file.read_text().splitlines()))
    assert [line["error"] for line in lines] == ["", bad["error"]]


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_a_curve_keeps_what_it_says(asking: Ask, kind: str) -> None:
    asked = ("gpt-tiny", "--gpus", "2..16", "--global-batch", "32", "--scaling", kind)
    code, out, err = asking(*asked, "--json")
    assert code == 0, err
    document = json.loads(out)
    batches = [one["job"]["global_batch"] for one in document["plans"]]
    wanted = [32, 64, 128, 256] if kind == "weak" else [32] * 4
    assert batches == wanted
    scaling = document["scaling"]
    assert scaling["kind"] == kind
    shares = [one["of_linear"] for one in scaling["efficiency"]]
    assert max(shares) == 1.0
    if kind == "strong":
        assert all(more >= fewer for more, fewer in pairwise(shares))
    speeds = [one["estimate"]["tokens_per_s_per_gpu"] for one in document["plans"]]
    assert shares == pytest.approx([speed / max(speeds) for speed in speeds])


def test_a_curve_goes_from_a_node_to_the_largest_cluster(
    asking: Ask, tmp_path: Path
) -> None:
    page = tmp_path / "curve.html"
    asked = ("gpt-tiny", "--scaling", "weak", "--plot", str(page))
    code, out, err = asking(*asked, "--json")
    assert code == 0, err
    sizes = [one["gpus"] for one in json.loads(out)["plans"]]
    assert (sizes[0], sizes[-1]) == (8, 131_072)
    assert "Weak scaling" in page.read_text()
    assert '"name":"LogTickFormatter"' not in page.read_text()  # says 3.000e+5


def test_the_table_and_the_sentence_say_one_time(asking: Ask) -> None:
    run = ("--tokens", "1e13", "--eval-interval", "1", "--eval-iters", "1000")
    days = set()
    for failures in ((), ("--mtbf", "1")):
        code, out, err = asking("gpt-tiny", "--gpus", "8,16", *run, *failures)
        assert code == 0, err
        said = re.search(r"fastest: ([\d,]+) GPUs \(([\d,.]+) days\)", out)
        assert said is not None
        (row,) = re.findall(rf"^ +{said[1]} .*", out, re.M)
        assert said[2] in row.split()
        days.add(said[2])
    assert len(days) == 2  # failures count
    never = asking("gpt-tiny", "--gpus", "8,16", *run, "--mtbf", "1e-5")[1]
    assert "never" in never


def test_a_run_on_other_clusters_counts_what_is_asked(asking: Ask) -> None:
    asked = (*TINY, "--versus", "dgx-h100", "--tokens", "1e12", "--json")
    days = []
    for more in ((), ("--mtbf", "5"), ("--mtbf", "1e-5")):
        code, out, err = asking(*asked, *more)
        assert code == 0, err
        days.append(json.loads(out)["versus"][1]["days"])
    assert days[0] < days[1]
    assert days[2] is None


@pytest.mark.parametrize(
    "asked",
    [("--gpus", "1,2"), ("--gpus", "1", "--sweep", "zero=0"), ("--versus", "dgx-h100")],
    ids=lambda asked: asked[-2],
)
def test_image_models_count_images(asking: Ask, asked: tuple[str, ...]) -> None:
    gpus = () if "--gpus" in asked else ("--gpus", "1")
    code, out, err = asking("resnet-50", *gpus, "--global-batch", "8", *asked)
    assert code == 0, err
    assert "images/" in out
    assert "Mimage" in out
    assert "token" not in out


def test_other_clusters_break_even_where_a_token_costs_the_same(asking: Ask) -> None:
    code, out, err = asking(*TINY, "--versus", "dgx-h100,dgx-b200", "--json")
    assert code == 0, err
    first, *others = json.loads(out)["versus"]
    assert first["times_as_fast"] == 1.0
    assert first["break_even_dollars_per_h"] == first["device_dollars_per_h"]
    batches = set()
    for one in (first, *others):
        rate = one["estimate"]["tokens_per_s_per_gpu"]
        a_token = one["break_even_dollars_per_h"] / 3600 / rate
        assert a_token * 1e6 == pytest.approx(first["dollars_per_mtoken"])
        layout = one["estimate"]["layout"]
        summary = layout["summary"]
        batches.add(summary["micro_batch"] * layout["micro_batches"] * summary["dp"])
    assert len(batches) == 1  # the same job
    code, out, _ = asking(*TINY, "--versus", "dgx-h100", "--tokens", "1e9")
    assert code == 0
    assert "is worth" in out
    assert "days" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--gpus", "8", "--versus", "dgx-h10"), "dgx-h100"),
        (("--versus", "dgx-h100", "--sweep", "tp=1"), "each ask for several plans"),
        (("--scaling", "weak", "--sweep", "tp=1"), "each ask for several plans"),
        (("--sweep", "tp=1", "--out", "x.json"), "--out is about one plan"),
        (("--sweep", "tp=1", "--tokens", "1e9"), "--tokens is about one plan"),
        (("--csv", "x.csv"), "--csv is of several answers"),
        (("--sweep", "colour=1"), "sweep axis"),
        (("--scaling", "medium"), "weak"),
        (("--inference", "--sweep", "tp=1"), "--sweep"),
        (("--diff", "a.json", "b.json", "--versus", "dgx-h100"), "--versus"),
    ],
)
def test_what_cannot_be_asked_together_is_refused(
    asking: Ask, argv: tuple[str, ...], said: str
) -> None:
    code, out, err = asking("gpt-tiny", *argv)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
