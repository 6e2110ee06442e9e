"""Questions are completed as a person would, and refused with the reason."""

from __future__ import annotations

from statistics import NormalDist

import pytest

from costmodel.options.pins import Pins
from planner.problem.problem import Objective
from planner.problem.question import Goal, Posed, pose
from profiles.commandline.options import JobOptions
from profiles.errors import (
    Contradiction,
    InvalidQuestion,
    InvalidSpec,
    UnknownName,
    Unsupported,
)
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model

A100 = cluster("dgx-a100-80gb")


def posed(name: str = "gpt-13b", where: str = "", /, **said: object) -> Posed:
    """A question, its options said as on a command line."""
    names = JobOptions.__dataclass_fields__
    wish = JobOptions(**{key: said.pop(key) for key in names if key in said})  # type: ignore[arg-type]
    found = cluster(where) if where else A100
    return pose(model(name), found, wish, Pins(**said))  # type: ignore[arg-type]


def test_defaults_are_named() -> None:
    found = posed(gpus=64)
    assert found.assumed["global_batch"] == 1536
    assert found.assumed["seq_len"] == 2048
    assert found.assumed["precision"] == "bf16"
    assert found.assumed["optimizer"] == "adamw"
    assert not {"tp", "pp", "dp", "micro_batch"} & found.assumed.keys()
    assert found.warnings == ()


def test_what_is_given_is_not_assumed() -> None:
    found = posed(gpus=64, global_batch=512, precision="fp16", framework="fsdp2")
    assert found.problem.job.global_batch == 512
    assert found.problem.machine.framework.name == "fsdp2"
    assert not {"global_batch", "precision", "framework"} & found.assumed.keys()


def test_a_batch_that_nobody_gave_is_raised_where_the_gpus_need_it() -> None:
    found = posed(gpus=7)
    assert found.problem.job.global_batch == found.assumed["global_batch"] == 1540
    assert any("1536 to 1540" in line for line in found.warnings)


@pytest.mark.parametrize("gpus", [8, 48, 64, 80, 1024])
def test_a_batch_that_some_layout_splits_stays(gpus: int) -> None:
    found = posed(gpus=gpus)
    assert (found.problem.job.global_batch, found.warnings) == (1536, ())


def test_a_batch_is_raised_as_little_as_can_be() -> None:
    """7 of 56 GPUs are enough to need a multiple of 7, not of 56."""
    assert posed(gpus=56).problem.job.global_batch == 1540
    assert posed(gpus=56, dp=56).problem.job.global_batch == 1568


def test_a_batch_that_was_given_is_never_changed() -> None:
    found = posed(gpus=7, global_batch=1536)
    assert (found.problem.job.global_batch, found.warnings) == (1536, ())


def test_gpus_are_the_cluster_s_where_it_has_a_number() -> None:
    found = posed("gpt-tiny", "cpu")
    assert found.problem.gpus == found.assumed["gpus"] == cluster("cpu").gpus
    with pytest.raises(InvalidQuestion, match="--gpus"):
        posed("gpt-tiny")


def test_an_old_device_gets_its_own_defaults() -> None:
    found = posed("gpt-13b", "p3.16xlarge", gpus=64)
    assert found.assumed["precision"] == "fp16"
    assert found.assumed["flash_attention"] is False


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"tp": 3}, "heads"),
        ({"tp": 8, "pp": 3}, "24 does not divide 64 GPUs"),
        ({"tp": 4, "pp": 4, "dp": 2, "cp": 1}, "= 32, not 64 GPUs"),
        ({"pp": 64}, "40 layers"),
        ({"cp": 3}, "seq_len"),
        ({"dp": 64, "global_batch": 100}, "not a multiple"),
        ({"micro_batch": 7, "global_batch": 64}, "not a multiple"),
        ({"micro_batches": 7, "global_batch": 64}, "7 micro-batches"),
        ({"tp": 2, "overlap": "tp", "sequence_parallel": False}, "--overlap tp cuts"),
        ({"zero": 0, "zero_group": 2}, "--zero 1, 2 or 3"),
        ({"dp": 8, "zero_group": 3}, "zero_group=3"),
        ({"tp": 1, "sequence_parallel": True}, "tp > 1"),
        ({"pp": 1, "virtual_stages": 2}, "--pp 2 or more"),
        ({"pp": 4, "virtual_stages": 3}, "equal parts"),
        ({"micro_batches": 3, "zero_group": 3}, "--micro-batches 3 --zero-group 3"),
        ({"flash_attention": True, "where": "p3.16xlarge"}, "flash attention"),
        ({"precision": "fp8"}, "does not multiply in fp8"),
        ({"gpus": 128, "where": "cpu"}, "cpu has 64"),
        ({"ep": 2}, "no experts to spread"),
        ({"model": "mixtral-8x7b", "ep": 3}, "the 8 experts"),
        ({"model": "mixtral-8x7b", "imbalance": 9.0}, "more than 4"),
        ({"model": "mixtral-8x7b", "tp": 2, "sequence_parallel": False}, "experts"),
    ],
)
def test_contradictions_say_why(said: dict[str, object], reason: str) -> None:
    asked: dict[str, object] = {"gpus": 64, **said}
    where = str(asked.pop("where", ""))
    name = str(asked.pop("model", "gpt-13b"))
    with pytest.raises(Contradiction, match=reason):
        posed(name, where, **asked)


@pytest.mark.parametrize(
    ("said", "error", "reason"),
    [
        ({"schedule": "zb-v", "virtual_stages": 3}, InvalidSpec, "two stages a rank"),
        ({"schedule": "chimera", "pp": 3}, InvalidSpec, "an even pp"),
        ({"schedule": "1f1bb"}, UnknownName, "1f1b"),
        ({"schedule": "1f1b", "virtual_stages": 2}, InvalidSpec, "one stage a rank"),
        ({"schedule": "interleaved", "pp": 1}, InvalidSpec, "pp >= 2"),
        ({"recompute": "mlp_upp"}, UnknownName, "did you mean mlp_up"),
        ({"recompute": "mlp_up=2"}, InvalidSpec, "a share is above 0, up to 1"),
        ({"recompute": "sqrt", "recompute_layers": 2}, Unsupported, "not searched"),
        ({"offload_to": "nvme"}, Contradiction, "has no effect without --offload"),
        ({"framework": "torch-titan"}, UnknownName, "framework"),
    ],
)
def test_what_is_not_searched_is_refused_by_name(
    said: dict[str, object], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        posed(gpus=64, **said)


def test_cost_needs_a_price() -> None:
    wish = JobOptions(gpus=2)
    with pytest.raises(Unsupported, match="--objective cost"):
        pose(
            model("gpt-tiny"),
            cluster("cpu"),
            wish,
            Pins(),
            Goal(objective=Objective.COST),
        )


def test_pins_of_an_impossible_question_are_not_to_blame() -> None:
    """Prime GPUs and a batch that they do not divide: no layout, pins or not."""
    found = posed("gpt-tiny", gpus=11, global_batch=3, zero=1)
    assert found.problem.pins.zero == 1


def test_what_is_recommended_is_to_fit_with_95_percent() -> None:
    found = posed(gpus=64)
    assert found.assumed["probability"] == 0.95
    problem = found.problem
    assert problem.memory_limit_bytes == problem.machine.device.capacity_bytes
    free = problem.machine.framework.footprint.deviations
    assert NormalDist().cdf(free) == pytest.approx(0.95)


def test_an_even_chance_is_the_whole_device() -> None:
    wish = JobOptions(gpus=64)
    found = pose(model("gpt-13b"), A100, wish, Pins(), Goal(probability=0.5))
    problem = found.problem
    assert "probability" not in found.assumed
    capacity = problem.machine.device.capacity_bytes
    assert problem.memory_limit_bytes == pytest.approx(capacity)
