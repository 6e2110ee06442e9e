"""A module of one's own from command to command: planned, priced, trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costmodel.cli import simulate
from planner.cli import plan
from profiles import load_model
from profiles.measure.plan import operations
from profiles.measure.timing import KINDS
from profiles.samples import kind_of
from tests.support.measured_module import OWN

Run = Callable[..., Any]
UNET, LSTM = f"{OWN}:unet", f"{OWN}:lstm"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layout of the U-Net for two ranks that share its layers."""
    from planner.__main__ import main

    path = tmp_path_factory.mktemp("modules") / "layout.json"
    words = ["--model", UNET, "--cluster", "cpu", "--gpus", "2", "--pp", "2"]
    more = ["--executable", "--global-batch", "4", "--out", str(path)]
    assert main([*words, *more], prog="plan") == 0
    return path


def test_a_layout_file_names_its_module(layout: Path) -> None:
    document = json.loads(layout.read_text())
    assert document["job"]["model"] == {"module": UNET}
    assert document["layout"]["summary"]["pp"] == 2


def test_a_file_alone_imports_nothing(layout: Path, run: Run) -> None:
    for command in (["costmodel", str(layout)], ["runtime", str(layout)]):
        done = run("python", "-m", *command)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert f"give --model {UNET} too" in done.stderr


def test_another_module_is_not_the_files(
    layout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from costmodel.__main__ import main

    assert main([str(layout), "--model", LSTM], prog="simulate") == 2
    assert f"which is of {UNET};" in capsys.readouterr().err
    assert main([str(layout), "--model", UNET], prog="simulate") == 0


@pytest.mark.slow
def test_it_trains_over_two_ranks(layout: Path, run: Run) -> None:
    words = ("python", "-m", "runtime", str(layout), "--steps", "3", "--json")
    done = run(*words, "--model", UNET)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["losses"]) == 3
    assert document["losses"][-1] < document["losses"][0]


def test_plans_for_modules_hold_what_is_executed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from planner.__main__ import main

    asked = ["--model", f"{OWN}:by_hand", "--cluster", "cpu", "--gpus", "4"]
    asked += ["--executable", "--global-batch", "8", "--top", "40", "--json"]
    assert main(asked, prog="plan") == 0
    document = json.loads(capsys.readouterr().out)
    found = [document["layout"], *(one["layout"] for one in document["alternatives"])]
    assert len(found) > 5
    assert {one["summary"]["tp"] for one in found} > {1}
    for one in found:
        summary = one["summary"]
        assert summary["cp"] == 1
        assert summary["tp"] == 1 or summary["pp"] == 1
        assert one["schedule"] in ("gpipe", "1f1b", "interleaved")
        plans = [plan for stage in one["stages"] for plan in stage["layer_plans"]]
        assert all(plan["sharding"] != "megatron-sp" for plan in plans)


def test_pins_that_its_code_does_not_run_with_say_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from costmodel.__main__ import main

    words = ["--model", UNET, "--cluster", "cpu", "--gpus", "2"]
    assert main([*words, "--tp", "2"], prog="simulate") == 2
    assert "no pair of linear layers" in capsys.readouterr().err


def test_a_users_sample_prices_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    from costmodel.layout import Uniform, spell_out
    from costmodel.machine import machine
    from costmodel.simulation import estimate
    from profiles import load_cluster, load_model
    from profiles.samples import OperatorKey, Sample, Samples

    cluster = load_cluster("cpu")
    job = load_model(f"{OWN}:custom").job(global_batch=4)
    layout = spell_out(Uniform(micro_batch=4, precision="fp32"), job.graph, 4)
    name, device = "meshwright_tests.swirl", cluster.device.name
    samples = Samples(
        operators={
            OperatorKey(
                device=device,
                software="any",
                kind=name,
                direction=way,
                shape=(4, 64),
                precision="fp32",
                backend="cpu",
            ): Sample(seconds=0.5, spread=0.0, repeats=3, provenance="mine")
            for way in ("forward", "backward")
        },
        collectives={},
        machine={"device": device},
    )
    plain, known = (
        estimate(job, cluster, layout, on=machine(cluster, samples=one))
        for one in (None, samples)
    )
    assert known.step_time_s - plain.step_time_s == pytest.approx(3 * 2 * 0.5, rel=0.1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (UNET, "convolution-3d"),
        ("resnet-50", "batchnorm"),
        ("vit-base", "full-attention"),
    ],
)
def test_what_profile_measures_is_what_is_priced(name: str, kind: str) -> None:
    """Each sample of a step takes its part of it."""
    from costmodel.layout import Uniform, spell_out
    from costmodel.machine import machine
    from costmodel.simulation import estimate
    from profiles import load_cluster
    from profiles.samples import OperatorKey, Sample, Samples

    cluster, job = load_cluster("cpu"), load_model(name).job(global_batch=2)
    layout = spell_out(Uniform(micro_batch=2, precision="fp32"), job.graph, 2)
    asked = operations(job, parts=(1,), precisions=("fp32",), most_tokens=1024)
    of_kind = [one for one in asked if one.kind == kind]
    assert of_kind

    def step_s(seconds: float) -> float:
        samples = Samples(
            operators={
                OperatorKey(
                    device=cluster.device.name,
                    software="any",
                    kind=kind,
                    direction=one.direction,
                    shape=one.shape,
                    precision="fp32",
                    backend="cpu",
                ): Sample(seconds=seconds, spread=0.0, repeats=3, provenance="here")
                for one in of_kind
            },
            collectives={},
            machine={"device": cluster.device.name},
        )
        on = machine(cluster, samples=samples)
        return float(estimate(job, cluster, layout, on=on).step_time_s)

    times = sum(
        count * (3 if kind.startswith("convolution") else 2)
        for block, count in job.graph.blocks
        for operator in block.operators
        if kind_of(operator) == kind
    )
    assert step_s(3.0) - step_s(1.0) == pytest.approx(2.0 * times, rel=1e-6)


def test_every_question_takes_a_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name and not as a layout file that names it: serving is refused as of its
    family, other frameworks' files take it, and what has no clock is not measured."""
    name = "tests.support.user_modules:odd"
    for command in (simulate, plan):
        assert command.run(["--inference", "--model", name, "--gpus", "1"]) == 2
        assert "is of family 'module'" in capsys.readouterr().err
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 1}, "train_batch_size": 8}')
    asked = ["--from", str(file), "--model", name, "--gpus", "2", "--json"]
    assert simulate.run(asked) == 0
    assert json.loads(capsys.readouterr().out)["from"]["framework"] == "deepspeed"
    job = load_model(f"{OWN}:by_hand").job()
    found = operations(job, parts=(1, 2), precisions=("fp32",), most_tokens=256)
    measured = {one.kind for one in found}
    unknown = {
        kind_of(one) for block in job.graph.distinct() for one in block.operators
    }
    assert unknown - set(KINDS)
    assert "matmul" in measured
    assert not (unknown - set(KINDS)) & measured
