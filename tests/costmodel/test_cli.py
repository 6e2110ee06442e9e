"""The command `simulate`: its document, its exit codes, and strange input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.options.pins import Pins
from costmodel.report.tables import layout_words
from costmodel.simulation.estimator import BREAKDOWN
from costmodel.simulation.flops import CONVENTIONS
from costmodel.simulation.layout_files import read_layout_file
from costmodel.sweep.axes import AXES
from tests.support.commanded import answered, refused, simulate
from tests.support.unlike import cluster_file

ASKED = ("--model", "gpt-13b", "--gpus", "64", "--tp", "4", "--pp", "2")
KEYS = {
    *("step_time_s", "tokens_per_s_per_gpu", "samples_per_s", "model_tflops_per_gpu"),
    *("hardware_tflops_per_gpu", "mfu", "hfu", "flops_convention", "peak_flops_used"),
    *("fits", "peak_memory_bytes", "peak_reserved_bytes", "peak_allocated_bytes"),
    *("capacity_bytes", "memory", "breakdown_s", "interval", "layout", "assumed"),
    *("warnings", "price_sources", "offloaded", "peak_needed_bytes"),
}
PIECES = {
    *("stage", "parameters", "gradients", "optimizer", "activations", "transient"),
    *("communication", "reserve", "context", "total"),
}


def test_the_document_has_the_contracts_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answered(capsys, *ASKED)
    assert set(found) == KEYS
    assert tuple(found["breakdown_s"]) == BREAKDOWN
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["step_time_s"])
    assert {frozenset(entry) for entry in found["memory"]} == {frozenset(PIECES)}
    assert found["layout"]["summary"] == {
        "tp": 4,
        "pp": 2,
        "dp": 8,
        "cp": 1,
        "ep": 1,
        "zero": 1,
        "zero_group": 8,
        "zero_ranks": 8,
        "micro_batch": 1,
    }
    assert found["assumed"]["dp"] == 8
    low, high = found["interval"]["step_time_s"]
    assert low < found["step_time_s"] < high
    tokens = 1536 * 2048
    rate = found["tokens_per_s_per_gpu"] * 64
    assert rate * found["step_time_s"] == pytest.approx(tokens)


def test_mfu_divides_by_the_dense_peak(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, *ASKED, "--recompute", "full")
    assert found["peak_flops_used"] == 312e12
    assert found["mfu"] * 312 == pytest.approx(found["model_tflops_per_gpu"])
    assert found["hfu"] > found["mfu"]


def test_a_layout_that_does_not_fit_is_answered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answered(capsys, "--model", "gpt-175b", "--gpus", "8")
    assert found["fits"] is False
    assert found["interval"]["probability_fits"] < 0.01


def test_what_is_offloaded_stands_in_the_layout_and_comes_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "layout.json"
    options = ("--offload", "optimizer,activations=0.5", "--offload-to", "nvme")
    asked = answered(capsys, *ASKED, *options, "--out", str(file))
    assert asked["breakdown_s"]["offload"] > 0
    stored = answered(capsys, str(file))
    for key in ("step_time_s", "memory", "breakdown_s", "layout"):
        assert stored[key] == asked[key], key
    assert (asked["layout"]["offload"], asked["layout"]["offload_to"]) == (
        "optimizer",
        "nvme",
    )
    assert simulate(str(file)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "offload optimizer,activations=0.5 to nvme" in shown


def test_unlike_islands_are_priced_together(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    unlike = cluster_file(tmp_path, "dgx-a100-80gb", "dgx-h100")
    asked = ("--model", "gpt-6.7b", "--gpus", "16", "--pp", "2")
    both = answered(capsys, *asked, "--cluster", unlike)
    placement = "ranks 0-7 on A100-SXM-80GB, ranks 8-15 on H100-SXM-80GB"
    assert both["assumed"]["placement"] == placement
    assert both["peak_flops_used"] == (312e12 + 989e12) / 2
    slow = answered(capsys, *asked, "--cluster", "dgx-a100-80gb")
    fast = answered(capsys, *asked, "--cluster", "dgx-h100")
    assert fast["step_time_s"] < both["step_time_s"] <= slow["step_time_s"]


@pytest.mark.parametrize("recompute", ["selective", "sqrt"])
def test_a_layout_file_gives_the_same_estimate(
    recompute: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "layout.json"
    options = (*ASKED, "--recompute", recompute, "--micro-batch", "2")
    asked = answered(capsys, *options, "--out", str(file))
    stored = answered(capsys, str(file))
    for key in ("step_time_s", "memory", "breakdown_s", "layout"):
        assert stored[key] == asked[key], key
    faster = answered(capsys, str(file), "--cluster", "dgx-h100")
    assert faster["step_time_s"] < stored["step_time_s"]
    assert simulate(str(file), "--tp", "2") == 2


@pytest.mark.parametrize(
    "option",
    [
        ("--bucket-mb", "1"),
        ("--overlap", "none"),
        ("--framework", "megatron-deepspeed", "--grad-dtype", "fp32"),
    ],
    ids=lambda option: option[0],
)
def test_what_a_layout_file_leaves_open_may_be_said_again(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Software is no part of a layout: the file remembers what was asked of it."""
    file = tmp_path / "layout.json"
    small = ("--model", "gpt-1.3b", "--gpus", "16", "--micro-batch", "4", "--zero", "0")
    asked = answered(capsys, *small, *option, "--out", str(file))
    for again in (option, ()):
        stored = answered(capsys, str(file), *again)
        for key in ("step_time_s", "memory", "breakdown_s", "layout"):
            assert stored[key] == asked[key], key
    changed = ("--framework", "fsdp2", "--overlap", "grad", "--bucket-mb", "400")
    other = answered(capsys, str(file), *changed)
    kinds = ("breakdown_s", "memory")
    assert [other[kind] for kind in kinds] != [asked[kind] for kind in kinds]


@pytest.mark.parametrize(
    ("asked", "option", "said"),
    [
        ((), ("--grad-dtype", "bf16"), "gradients are fp32"),
        (
            ("--tp", "2", "--no-sequence-parallel"),
            ("--overlap", "tp"),
            "--no-sequence-parallel",
        ),
    ],
)
def test_what_contradicts_a_layout_file_is_refused(
    asked: tuple[str, ...],
    option: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    file = tmp_path / "layout.json"
    answered(capsys, *ASKED[:4], *asked, "--out", str(file))
    assert simulate(str(file), *option) == 2
    heard = capsys.readouterr()
    assert heard.out == ""
    assert said in heard.err


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("mesh", "tp"), 3, "40 heads"),
        (("retention",), {"*": {"action": "compress", "bits": 3}}, "1, 2, 4, 8, 16"),
        (
            ("retention",),
            {"attention_core": {"action": "compress", "bits": 8}},
            "choose among",
        ),
        (("retention",), {"*": {"action": "offload", "tier": "disk"}}, "cpu, nvme"),
        (("retention",), {"softmaxx": {"action": "recompute"}}, "softmaxx"),
    ],
)
def test_a_layout_file_that_cannot_run_so_is_refused(
    path: tuple[str, ...],
    value: Any,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    file = tmp_path / "layout.json"
    answered(capsys, "--model", "gpt-13b", "--gpus", "8", "--out", str(file))
    document = json.loads(file.read_text())
    del document["layout"]["summary"]
    (stage,) = document["layout"]["stages"]
    if path == ("retention",):
        stage["layer_plans"][-1]["retention"] = value
    else:
        document["gpus"], stage["ranks"] = 24, "0-23"
        stage["mesh"]["tp"] = value
    file.write_text(json.dumps(document))
    assert simulate(str(file)) == 2
    heard = capsys.readouterr()
    assert heard.out == ""
    assert said in heard.err


def test_a_sweep_prices_what_is_legal_and_says_what_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ("--model", "gpt-13b", "--gpus", "48")
    found = answered(capsys, *argv, "--sweep", "tp=1,2,3", "--sweep", "zero=1,3")
    rows = found["sweep"]
    assert [row["point"] for row in rows][:2] == [
        {"tp": 1, "zero": 1},
        {"tp": 1, "zero": 3},
    ]
    legal = [row["error"] is None for row in rows]
    assert legal == [True, True, True, True, False, False]
    assert "tp=3 does not divide" in rows[-1]["error"]


def test_zero_plus_is_asked_for_printed_kept_and_swept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ("--model", "gpt-13b", "--gpus", "64", "--zero", "3")
    asked = ("--zero-quantized-weights", "--zero-hpz-partition-size", "8")
    file = str(tmp_path / "layout.json")
    found = answered(capsys, *argv, *asked, "--out", file)
    assert found["layout"]["zero_quantized_weights"] is True
    assert found["layout"]["zero_hpz_partition_size"] == 8
    assert answered(capsys, file)["step_time_s"] == found["step_time_s"]
    assert simulate(file) == 0
    assert "ZeRO-3, quantized weights, hpZ 8" in capsys.readouterr().out
    rows = answered(
        capsys,
        *argv,
        *("--sweep", "zero-quantized-gradients=on,off"),
        *("--sweep", "zero-hpz-partition-size=1,8,9"),
    )["sweep"]
    assert [row["error"] is None for row in rows] == [True, True, False] * 2
    priced = (row["estimate"] for row in rows if row["error"] is None)
    assert len({one["step_time_s"] for one in priced}) == 4


def test_a_sweep_says_whose_batch_was_raised(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ("--model", "gpt-13b", "--gpus", "64", "--tp", "4")
    assert simulate(*argv, "--sweep", "micro-batch=4,5") == 0
    said = capsys.readouterr().err
    assert "micro-batch=5: global batch raised from 1536 to 1600" in said
    assert "micro-batch=4" not in said


def test_every_whole_number_of_a_layout_is_an_axis() -> None:
    hints = get_type_hints(Pins)
    whole = {
        name.replace("_", "-") for name, hint in hints.items() if hint == int | None
    }
    assert {"tp", "ep", "etp", "zero-group"} <= whole <= set(AXES)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--recompute", "none"), None),
        (("--recompute", "full"), "recompute full"),
        (("--recompute", "selective"), "recompute selective"),
        (("--recompute", "qkv,mlp_up=0.5"), "recompute mlp_up=0.5, qkv"),
        (("--recompute", "sqrt"), "recompute full, in segments"),
        (
            ("--recompute", "full", "--recompute-layers", "5"),
            "recompute full in 10 of 40 layers",
        ),
    ],
)
def test_the_layout_in_words_says_what_is_made_again(
    option: tuple[str, ...], said: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "layout.json"
    assert simulate(*ASKED, *option, "--out", str(file)) == 0
    words = layout_words(read_layout_file(file).layout)
    assert words.partition("sequence parallel")[2] == (f", {said}" if said else "")


def test_the_convention_of_the_flops_is_named_where_they_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for item in CONVENTIONS.values():
        assert simulate(*ASKED, "--flops-convention", item.name) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"({item.brief})" in shown


def test_a_trace_holds_every_pass(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "step.json"
    found = answered(capsys, *ASKED, "--global-batch", "64", "--trace", str(file))
    events = json.loads(file.read_text())["traceEvents"]
    passes = [item for item in events if item["ph"] == "X"]
    names = {item["name"] for item in passes}
    assert {"0F0", "1B7", "0F7"} <= names
    ends = [item["ts"] + item["dur"] for item in passes]
    assert max(ends) / 1e6 <= found["step_time_s"] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "--model"),
        (
            (
                "--model",
                "gpt-13",
            ),
            "gpt-13b",
        ),
        (("--model", "gpt-13b", "--cluster", "dgx-a10"), "dgx-a100"),
        ((*ASKED, "--dp", "3"), "64 GPUs"),
        ((*ASKED, "--global-batch", "7"), "micro-batch 1 × dp 8"),
        ((*ASKED, "--micro-batches", "5", "--global-batch", "64"), "micro-batches"),
        ((*ASKED, "--tp", "3"), "64 GPUs"),
        ((*ASKED, "--schedule", "zb-v", "--pp", "1"), "pp >= 2"),
        ((*ASKED, "--precision", "fp8"), "bf16"),
        (
            (*ASKED, "--recompute", "auto", "--recompute-layers", "2"),
            "leave --recompute",
        ),
        ((*ASKED, "--offload", "parameters"), "--zero 3"),
        ((*ASKED, "--offload-to", "nvme"), "has no effect without --offload"),
        ((*ASKED, "--ep", "2"), "no experts to spread"),
        ((*ASKED, "--imbalance", "2"), "is about experts"),
        ((*ASKED, "--zero", "0", "--zero-group", "2"), "--zero-group"),
        ((*ASKED, "--zero-quantized-weights"), "needs --zero 3, not 1"),
        (
            (*ASKED, "--zero", "3", "--zero-hpz-partition-size", "3"),
            "3 does not divide the dp × cp = 8 ranks",
        ),
        ((*ASKED, "--zero-hpz-partition-size", "0"), "must be a whole number >= 1"),
        ((*ASKED, "--sweep", "zero-quantized-weights=1"), "write on or off"),
        (
            (*ASKED, "--sweep", "micro-batch=0"),
            "micro-batch='0': must be a whole",
        ),
        ((*ASKED, "--sweep", "tp"), "AXIS"),
        ((*ASKED, "--sweep", "colour=1"), "sweep axis"),
        ((*ASKED, "--sweep", "tp=1", "--out", "x.json"), "--out is about one layout"),
        (("--runs", "x.csv", "--trace", "t", "--tokens", "9"), "--trace, --tokens are"),
        (("--runs", "x.csv", "--sweep", "tp=1"), "--sweep is about one layout"),
        ((*ASKED, "--tokens", "0"), "must be a number >= 1"),
        ((*ASKED, "--recompute-layers", "2"), "add --recompute full"),
        (("--model", "resnet-50", "--gpus", "8", "--tp", "2"), "tp"),
        (("--model", "mixtral-8x7b", "--gpus", "8", "--ep", "3"), "the 8 experts"),
        (("--model", "mixtral-8x7b", "--gpus", "4", "--ep", "8"), "= 4 ranks"),
        (("--model", "mixtral-8x7b", "--imbalance", "5"), "more than 4"),
        (
            ("--model", "gpt-2.7b", "--cluster", "p3.16xlarge", "--flash-attention"),
            "--no-flash-attention",
        ),
        (("--model", "gpt-13b", "--cluster", "cpu", "--gpus", "128"), "128"),
        (("/nonexistent.json",), "/nonexistent.json"),
        (("--runs", "/dev/null"), "regular file"),
    ],
)
def test_a_wrong_question_is_one_line_and_exit_2(
    argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, *argv)


def test_what_cannot_be_written_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert simulate(*ASKED, "--out", str(tmp_path / "no" / "layout.json")) == 2
    assert simulate(*ASKED, "--out", str(tmp_path)) == 2
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


words = st.sampled_from(
    (
        *("--model", "gpt-13b", "gpt-tiny", "--gpus", "8", "64", "7", "--tp", "2"),
        *("--pp", "4", "--zero", "3", "9", "--schedule", "gpipe", "interleaved"),
        *("--micro-batch", "-1", "--cp", "--recompute", "full", "attention,mlp_up"),
        *("--sweep", "tp=1,2", "--json", "--cluster", "cpu", "dgx-h100", "--seq-len"),
        *(
            "--virtual-stages",
            "--precision",
            "bf16",
            "fp32",
            "",
            "é",
            "--tokens",
            "nan",
        ),
        *("--overlap", "none", "--zero-group", "--recompute-layers", "--framework"),
        *("megatron-lm", "1e400", "--bucket-mb", "0", "--no-flash-attention"),
        *("--rampup-batch-size", "--compare-data-parallel"),
    )
)


@given(st.lists(words, max_size=9))
def test_strange_words_never_surprise(argv: list[str]) -> None:
    """Answered or refused; an exit code of 70 would be a mistake of ours."""
    assert simulate(*argv) in (0, 1, 2)


def test_states_are_said_to_be_sharded_over_cp_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A shard group of one data-parallel rank has those of its cp."""
    asked = ("--model", "gpt-mini", "--gpus", "16", "--cp", "2", "--zero", "1")
    found = answered(capsys, *asked, "--zero-group", "1", "--recompute", "none")
    assert found["layout"]["summary"]["zero_ranks"] == 2
    assert simulate(*asked, "--zero-group", "2") == 0
    assert "ZeRO-1 over 4 ranks" in " ".join(capsys.readouterr().out.split())
    whole = answered(capsys, *asked)
    assert whole["layout"]["summary"]["zero_ranks"] == 16
