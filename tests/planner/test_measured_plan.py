"""`plan` with measured samples: the same certificate, other prices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodel.machine.assembly import machine
from costmodel.options.pins import Pins
from planner.__main__ import main
from planner.api import plan, solve
from planner.baselines.exhaustive import Exhaustive
from planner.heterogeneous.search import require_possible
from planner.problem.solution import EXACT
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Limits
from profiles.errors import StaleProfile, Unsupported
from profiles.samples.files import content_hash, write_samples
from tests.support.problems import on as catalogue
from tests.support.problems import problem
from tests.support.sampled import job, local, on, samples

ASKED = ("--model", "gpt-tiny", "--gpus", "2", "--cluster", "local")


@pytest.mark.parametrize(
    ("ranks", "cores", "share"),
    [(2, 4, 1.0), (4, 4, 0.5), (4, 2, 0.5), (4, 2, 1.0), (4, 1, 1.0)],
)
def test_the_search_agrees_with_the_oracle(
    ranks: int, cores: int, share: float
) -> None:
    """Also where ranks that wait leave their core to others."""
    few = Pins(recompute="none", zero=1, schedule="1f1b", cp=1)
    where = on("gpt-tiny", 4, share, cores)
    posed = problem("gpt-tiny", ranks, where=where, pins=few)
    found = solve(posed, BranchAndBound(), Limits())
    oracle = solve(posed, Exhaustive(), Limits(runners_up=0))
    assert found.value == pytest.approx(oracle.value, rel=2 * EXACT)
    assert found.best is not None
    assert found.best.estimate.price_sources is not None


def test_unlike_stages_need_a_core_each() -> None:
    posed = problem("gpt-tiny", 4, where=on("gpt-tiny", 4, 1.0, 2))
    with pytest.raises(Unsupported, match="more ranks than"):
        require_possible(posed)


def test_samples_change_the_choice() -> None:
    """Tensor parallelism where products scale and gradients travel slowly."""
    slow = samples(job(), 2)
    slow = type(slow)(
        operators=slow.operators,
        collectives={
            key: one
            if key.size_bytes < 2**20
            else type(one)(seconds=100.0, spread=0.0, repeats=1, provenance="made up")
            for key, one in slow.collectives.items()
        },
    )
    best = plan(job(), local(2), gpus=2, on=machine(local(2), samples=slow)).best
    assert best is not None
    assert best.choice.dp == 1


def test_the_command_says_where_its_price_comes_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    known = samples(job(), 2)
    file, out = tmp_path / "samples.json", tmp_path / "layout.json"
    write_samples(known, file)
    argv = [*ASKED, "--profile", str(file)]
    assert main([*argv, "--out", str(out), "--json"], prog="plan") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cluster"] == "local"
    assert document["estimate"]["price_sources"]["measured"] > 0.5
    assert document["assumed"]["precision"] == "fp32"
    assert json.loads(out.read_text())["profiles"] == [content_hash(known)]
    assert main(argv, prog="plan") == 0
    shown = capsys.readouterr()
    assert "% measured" in shown.out
    assert shown.err == ""


def test_other_ranks_at_work_and_noise_are_warnings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    known = samples(job(), 4)
    noisy = type(known)(
        operators=known.operators,
        collectives=known.collectives,
        machine={"noise": "noisy: others used 40 % of the cores"},
        cluster=known.cluster,
    )
    file = tmp_path / "samples.json"
    write_samples(noisy, file)
    assert main([*ASKED, "--profile", str(file)], prog="plan") == 0
    said = capsys.readouterr().err
    assert "noisy: others used 40 %" in said
    assert "with 2 ranks" in said


def test_samples_of_another_device_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "samples.json"
    write_samples(samples(job(), 2), file)
    argv = ("--model", "gpt-tiny", "--gpus", "8", "--cluster", "dgx-a100-80gb")
    assert main([*argv, "--profile", str(file)], prog="plan") == 2
    assert "samples are of bench-cpu" in capsys.readouterr().err
    assert main(list(ASKED), prog="plan") == 2
    assert "pass --profile" in capsys.readouterr().err
    with pytest.raises(StaleProfile):
        machine(catalogue().cluster, samples=samples(job(), 2))
