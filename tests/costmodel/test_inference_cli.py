"""`simulate --inference`: its document, its table, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from costmodel.cli import simulate as command
from costmodel.inference.estimate import BOUNDS, BREAKDOWN
from costmodel.options.inference import OWN, TAKEN
from tests.support.commanded import answered, simulate

ASKED = ("--inference", "--model", "llama2-7b")
KEYS = {
    *("fits", "peak_memory_bytes", "capacity_bytes", "largest_global_batch", "memory"),
    *("kv_cache_bytes_per_token", "context_tokens", "prompt_tokens", "new_tokens"),
    *("prefill", "decode", "generation", "layout", "assumed", "warnings"),
}
BOUND = {"bound", "bounds_s", "breakdown_s"}


def test_the_document_has_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, *ASKED)
    assert set(found) == KEYS
    assert set(found["prefill"]) == BOUND | {
        *("time_s", "time_to_first_token_s", "prompts_together", "tokens_per_s"),
        *("tokens_per_s_per_gpu", "flops_per_token", "mfu"),
    }
    assert set(found["decode"]) == BOUND | {
        *("step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "least_step_time_s"),
        *("weight_bytes_read", "kv_cache_bytes_read"),
    }
    assert set(found["generation"]) == {"time_s", "decode_time_s", "tokens_per_s"}
    for part in ("prefill", "decode"):
        assert tuple(found[part]["bounds_s"]) == BOUNDS
        assert tuple(found[part]["breakdown_s"]) == BREAKDOWN
    assert found["assumed"] == {
        "cluster": "dgx-a100-80gb",
        "tp": 1,
        "pp": 1,
        "gpus": 1,
        "dp": 1,
        "seq_len": 4096,
        "new_tokens": 128,
        "prompt_len": 3968,
        "micro_batch": 1,
        "micro_batches": 1,
        "global_batch": 1,
        "precision": "bf16",
        "flash_attention": True,
        "kv_cache_dtype": "bf16",
        "cuda_graphs": True,
    }


def test_what_was_asked_is_not_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--gpus", "8", "--tp", "2", "--pp", "2", "--global-batch", "16")
    lengths = ("--prompt-len", "1000", "--new-tokens", "24", "--seq-len", "2048")
    stored = ("--quantization", "int4", "--kv-cache-dtype", "fp8", "--no-cuda-graphs")
    found = answered(capsys, *ASKED, *asked, *lengths, *stored)
    assert found["layout"] == {
        "tp": 2,
        "pp": 2,
        "dp": 2,
        "ep": 1,
        "micro_batch": 4,
        "micro_batches": 2,
        "global_batch": 16,
        "precision": "bf16",
        "kv_cache_dtype": "fp8",
        "quantization": "int4",
        "group_size": 128,
        "flash_attention": True,
        "cuda_graphs": False,
    }
    assert found["context_tokens"] == 2048
    assert (found["prompt_tokens"], found["new_tokens"]) == (1000, 24)
    assert {"dp", "micro_batch", "micro_batches", "group_size"} <= set(found["assumed"])
    assert not {"tp", "seq_len", "cuda_graphs"} & set(found["assumed"])


def test_a_person_is_told_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(*ASKED, "--micro-batch", "1000") == 0
    said = capsys.readouterr().out
    for words in ("prefill", "decode", "DOES NOT FIT", "largest global batch 32", "KV"):
        assert words in said
    assert "bottleneck: memory bandwidth" in " ".join(said.split())
    assert simulate("--inference", "--model", "llama3-405b") == 0
    assert "no batch fits" in capsys.readouterr().out


def test_many_stages_are_a_short_table(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--inference", "--model", "gpt-175b", "--gpus", "96", "--pp", "96")
    assert simulate(*asked, "--details") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = [row[0] for row in rows[rows.index([]) + 2 :] if row]
    assert shown == ["0", "1–94", "95"]


OF_TRAINING: tuple[tuple[str, ...], ...] = (
    ("--zero", "1"),
    ("--zero-group", "2"),
    ("--zero-quantized-weights",),
    ("--zero-hpz-partition-size", "2"),
    ("--zero-quantized-gradients",),
    ("--recompute", "none"),
    ("--recompute-layers", "1"),
    ("--stage-layers", "1,1"),
    ("--first-stage-layers", "1"),
    ("--last-stage-layers", "1"),
    ("--offload", "optimizer"),
    ("--offload-to", "cpu"),
    ("--schedule", "1f1b"),
    ("--virtual-stages", "2"),
    ("--optimizer", "adamw"),
    ("--grad-dtype", "fp32"),
    ("--sequence-parallel",),
    ("--cp", "2"),
    ("--cp-kind", "ring"),
    ("--etp", "1"),
    ("--overlap", "grad"),
    ("--bucket-mb", "25"),
    ("--framework", "megatron-core"),
    ("--profile", "samples.json"),
    ("--trace", "trace.json"),
    ("--memory-snapshot", "step.pickle"),
    ("--compare", "traces"),
    ("--compare-dtr", "0.5"),
    ("--compress-activations", "8"),
    ("--compress-gradients", "bf16"),
    ("--out", "layout.json"),
    ("--runs", "runs.csv"),
    ("--report", "page.html"),
    ("--flops-convention", "palm"),
    ("--compare-data-parallel",),
    ("--compare-networks",),
    ("--radix", "64"),
    ("--from", "train.sh"),
    ("--export", "megatron"),
    ("--export-to", "."),
    ("--calibrate", "runs.csv"),
    ("--calibration", "kept.json"),
    ("--save-calibration", "kept.json"),
)
OF_A_RUN = (
    *("--tokens", "--rampup-batch-size", "--eval-interval", "--eval-iters", "--mtbf"),
    *("--recovery", "--restart-time", "--save-interval", "--storage-bandwidth"),
    *("--spare-nodes", "--repair-time", "--step-jitter", "--monte-carlo", "--pue"),
    "--carbon-intensity",
)


@pytest.mark.parametrize("options", OF_TRAINING)
def test_what_is_of_training_is_refused(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    assert simulate(*ASKED, *options) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert f"--inference does not take {options[0]}" in said.err
    assert "--sweep" in said.err  # which inference takes


def test_so_is_a_whole_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(*ASKED, "--tokens", "1e9", "--mtbf", "1000") == 2
    assert "--inference does not take --tokens" in capsys.readouterr().err


def test_every_option_is_taken_or_refused() -> None:
    both = {"--json", "--version", "--inference", "--details", "--config"}
    flags = {
        max(option.opts, key=len)
        for option in command.params
        if isinstance(option, click.Option)
    }
    taken = {f"--{name.replace('_', '-')}" for name in (*TAKEN, *OWN)}
    over = {"--sweep", "--csv", "--plot"}
    of_training = {options[0] for options in OF_TRAINING} | {*OF_A_RUN}
    assert flags - taken - both - over == of_training


def test_a_sweep_over_links_is_written_as_csv(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "s.csv"
    axis = ("--sweep", "intra-node-bandwidth=100,450")
    assert simulate(*ASKED, "--tp", "2", *axis, "--csv", str(file)) == 0
    head, slow, fast = (line.split(",") for line in file.read_text().splitlines())
    first = head.index("first_token_s")
    assert float(slow[first]) > float(fast[first])
    assert "--plot" in _refused(capsys, *axis, "--plot", str(tmp_path / "p.html"))
    assert "--csv" in _refused(capsys, "--csv", str(file))


def _refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert simulate(*ASKED, *argv) == 2
    return capsys.readouterr().err


def test_a_layout_file_is_of_training(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "layout.json"
    assert simulate("gpt-tiny", "--gpus", "1", "--out", str(path)) == 0
    assert simulate("--inference", str(path)) == 2
    assert "--inference does not take a layout file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ("--prompt-len", "5"),
        ("--new-tokens", "5"),
        ("--kv-cache-dtype", "fp8"),
        ("--quantization", "int8"),
        ("--group-size", "64"),
        ("--no-cuda-graphs",),
    ],
)
def test_what_is_of_inference_needs_the_word(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    assert simulate("--model", "llama2-7b", "--gpus", "8", *options) == 2
    assert "add --inference" in capsys.readouterr().err


def test_the_machine_of_a_profile_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulate(*ASKED, "--cluster", "local") == 2
    said = capsys.readouterr().err
    assert "--cluster local" in said
    assert "--profile" not in said


def test_a_sweep_prices_each_combination(capsys: pytest.CaptureFixture[str]) -> None:
    axes = ("--sweep", "tp=1,3", "--sweep", "micro-batch=1,8")
    found = answered(capsys, *ASKED, *axes)["sweep"]
    assert [one["point"] for one in found] == [
        {"tp": tp, "micro_batch": size} for tp in (1, 3) for size in (1, 8)
    ]
    assert found[1]["estimate"] == answered(
        capsys, *ASKED, "--tp", "1", "--micro-batch", "8"
    )
    assert found[2]["estimate"] is None
    assert "32 heads" in found[2]["error"]
    assert simulate(*ASKED, *axes) == 0
    assert "32 heads" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        ("zero=1,2", "sweep axis"),
        ("kv-cache-dtype=int3", "cache"),
        ("quantization=int3", "quantization"),
        ("precision=int3", "precision"),
        ("prompt-len=0", "whole number"),
        ("tp", "AXIS=V1,V2"),
    ],
)
def test_a_sweep_of_what_is_not_is_refused(
    capsys: pytest.CaptureFixture[str], axis: str, said: str
) -> None:
    assert simulate(*ASKED, "--sweep", axis) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err


def test_a_model_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--inference") == 2
    assert "--model is missing" in capsys.readouterr().err
