"""`simulate --sweep`: table, CSV, page and document say the same."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.support.commanded import answered, refused, simulate

ASKED = ("gpt-13b", "--gpus", "64", "--tp", "4", "--global-batch", "64")
LINKS = ("--sweep", "inter-node-bandwidth=5,50", "--sweep", "micro-batch=1,5")


def test_a_point_is_priced_as_if_asked_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    axes = ("--sweep", "cluster=dgx-h100,dgx-a100-80gb", "--sweep", "precision=bf16")
    rows = answered(capsys, *ASKED, *axes)["sweep"]
    for row in rows:
        alone = answered(capsys, *ASKED, "--cluster", row["point"]["cluster"])
        assert row["estimate"]["step_time_s"] == alone["step_time_s"]
        assert row["estimate"]["layout"] == alone["layout"]


def test_slower_links_and_smaller_devices_cost_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for axis in (
        "inter-node-bandwidth=5,10,50",
        "intra-node-bandwidth=50,150,300",
        "inter-node-latency=500,50,5",
        "device=a100-sxm,h100-sxm",
    ):
        asked = (*ASKED, "--zero", "3", "--no-flash-attention", "--precision", "fp16")
        rows = answered(capsys, *asked, "--sweep", axis)["sweep"]
        steps = [row["estimate"]["step_time_s"] for row in rows]
        assert steps == sorted(steps, reverse=True), axis
        assert steps[0] > steps[-1], axis


def test_the_csv_holds_every_point(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "sweep.csv"
    rows = answered(capsys, *ASKED, *LINKS, "--csv", str(file))["sweep"]
    lines = list(csv.DictReader(file.read_text().splitlines()))
    assert len(lines) == len(rows) == 4
    for line, row in zip(lines, rows, strict=True):
        assert (
            float(line["inter_node_bandwidth"]) == row["point"]["inter_node_bandwidth"]
        )
        if row["estimate"] is None:
            assert line["step_time_s"] == ""
            assert line["error"] == row["error"]
            continue
        for name in ("step_time_s", "mfu", "tokens_per_s_per_gpu"):
            assert float(line[name]) == pytest.approx(row["estimate"][name], rel=1e-8)


def test_the_page_holds_charts_and_all_numbers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "sweep.html"
    assert simulate(*ASKED, *LINKS, "--plot", str(file)) == 0
    capsys.readouterr()
    page = file.read_text()
    start = page.index('id="charts">') + len('id="charts">')
    data = json.loads(page[start : page.index("</script>", start)])
    assert list(data["items"]) == ["throughput", "step", "cost"]
    legends = data["series"]["throughput"]["legend"]
    assert [name for name, _ in legends] == ["micro-batch=1"]
    assert "inter-node-bandwidth=50" in page
    assert "http" not in page.split("<script>")[0].replace("http-equiv", "")


def test_files_of_a_sweep_need_one_and_links_of_islands_are_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = str(tmp_path / "x.html")
    assert "--csv is of several answers" in refused(capsys, *ASKED, "--csv", file)
    assert "--plot" in refused(capsys, *ASKED, "--plot", file)
    same = ("--csv", file, "--plot", file)
    assert "--csv" in refused(capsys, *ASKED, "--sweep", "tp=1", *same)
    assert not Path(file).exists()
    for option in ("--plot", "--report"):
        said = refused(capsys, *ASKED, option, str(tmp_path / "x.png"))
        assert "must end in .html" in said
    missing = ("--gpus", "8", "--sweep", "tp=1,2")
    assert "--model" in refused(capsys, *missing)


def test_nothing_to_draw_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "x.html"
    assert simulate(*ASKED, "--sweep", "pp=3,5", "--plot", str(file)) == 1
    assert "--plot" in capsys.readouterr().err
    assert not file.exists()
