"""The command `profile`: what it refuses, and what it shows."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from profiles.cli import profile
from profiles.errors import InvalidFile, InvalidQuestion
from profiles.hardware import catalog
from profiles.measure import machine
from profiles.measure.options import MeasureOptions
from profiles.measure.session import resolved
from profiles.samples.files import content_hash, read_samples, write_samples
from profiles.samples.table import (
    CollectiveKey,
    OperatorKey,
    Sample,
    Samples,
    local_cluster,
)

PRODUCT = OperatorKey(
    device="cpu",
    software="torch",
    kind="matmul",
    direction="backward-weight",
    shape=(100, 10, 1000),
    precision="fp32",
    backend="eager",
    co_running="ranks=2",
)
MESSAGES = [
    CollectiveKey(fabric="loopback", collective="send", ranks=(2,), size_bytes=size)
    for size in (1024, 1_000_000)
]
SAMPLE = Sample(seconds=1e-3, spread=0.02, repeats=5, provenance="measured")
SAMPLES = Samples(
    operators={PRODUCT: SAMPLE},
    collectives=dict.fromkeys(MESSAGES, SAMPLE),
    machine={"device": "cpu", "noise": "quiet: calibration spread 1 %"},
    cluster=catalog.cluster("cpu"),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_samples(SAMPLES, tmp_path / "samples.json")
    return tmp_path / "samples.json"


@pytest.fixture(autouse=True)
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", tuple)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("", "--out is missing"),
        ("--json --model gpt-tiny", "--out is missing"),
        ("--show samples.json --out other.json", "give one"),
        ("--show absent.json", "cannot be read"),
        ("--show foreign.json", "not a file of samples"),
        ("--out .", "is a folder"),
        ("--out absent/samples.json", "no such file or directory"),
        ("--out samples.json --device cuda", "sees no GPU"),
        ("--out samples.json --device tpu", "must be one of cpu, cuda"),
        ("--out samples.json --nproc 0", "from 1 to 64"),
        ("--out samples.json --device cpu --nproc 64", "of memory"),
        ("--out samples.json --precision fp16", "does not multiply in it"),
        (
            "--out samples.json --precision fp64",
            "must be one of fp32, tf32, bf16, fp16, fp8",
        ),
        ("--out samples.json --seq-len 64", "give --model too"),
        ("--out samples.json --nnodes 2", "meet at HOST:PORT"),
        ("--out samples.json --nnodes 2 --rdzv-endpoint node0", "meet at HOST:PORT"),
        ("--out samples.json --global-batch 64", "give --model too"),
        ("--out samples.json --model gpt-tny", "did you mean gpt-tiny"),
        ("--out samples.json --model resnet-50", "are not measured"),
        ("--out samples.json --model gpt-tiny --seq-len 512", "learned positions"),
    ],
)
def test_wrong_questions_are_one_line(
    argv: str,
    said: str,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.setattr(machine, "memory_bytes", lambda what="": 2.0**34)
    Path("foreign.json").write_text('{"format": "other"}')
    before = file.read_bytes()
    assert profile.run(argv.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
    assert file.read_bytes() == before


def test_defaults_are_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 16)
    question = resolved(MeasureOptions(model="gpt-tiny"))
    assert (question.device, question.ranks, question.precisions) == (
        "cpu",
        4,
        ("fp32",),
    )
    (job,) = question.jobs
    assert (job.model, job.seq_len, job.global_batch) == ("gpt-tiny", 256, 8)
    norms = {
        operator.function
        for job in resolved(MeasureOptions()).jobs
        for block in job.graph.distinct()
        for operator in block.operators
    }
    assert {"layernorm", "rmsnorm", "gelu", "swiglu", "rotary", "positions"} <= norms


def test_gpus_are_the_default_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: ("NVIDIA H100 80GB HBM3",) * 2)
    monkeypatch.setattr(machine, "multiplies", lambda number, device: True)
    question = resolved(MeasureOptions())
    assert (question.device, question.ranks) == ("cuda", 2)
    assert question.precisions == ("bf16", "fp32")
    with pytest.raises(InvalidQuestion, match="this machine has 2 GPUs"):
        resolved(MeasureOptions(ranks=4))
    volta = ("fp32", "fp16")
    monkeypatch.setattr(machine, "multiplies", lambda number, device: number in volta)
    with pytest.raises(InvalidQuestion, match=r"it has fp32, fp16$"):
        resolved(MeasureOptions(precisions=("bf16",)))


def test_a_file_is_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.run(["--show", str(file)]) == 0
    screen = capsys.readouterr().out
    assert "backward-weight" not in screen
    assert screen.splitlines()[-1] == "--details adds the samples by kind"
    assert profile.run(["--show", str(file), "--details"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "quiet: calibration spread 1 %" in out
    assert "backward-weight" in out
    assert "2 GFLOP/s" in out  # 2 · 100 · 10 · 1000 in a millisecond
    assert "1 GB/s" in out  # 1,000,000 bytes in a millisecond
    assert "local" not in out or "cpu" in out


def test_a_file_is_shown_as_json(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile.run(["--show", str(file), "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == ""
    assert (document["operators"], document["collectives"]) == (1, 2)
    assert document["out"] == str(file)
    assert document["noise"] == "quiet: calibration spread 1 %"
    assert document["cluster"]["name"] == "cpu"
    assert document["content_hash"] == content_hash(SAMPLES)


def test_the_cluster_is_kept_and_hashed(file: Path) -> None:
    assert read_samples(file) == SAMPLES
    document = json.loads(file.read_text())
    assert document["cluster"]["islands"][0]["device"]["name"] == "cpu"
    document["cluster"]["name"] = "other"
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidFile, match="content_hash"):
        read_samples(file)


def test_a_damaged_cluster_is_named(file: Path) -> None:
    document = json.loads(file.read_text())
    document["cluster"]["islands"][0]["colour"] = "blue"
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidFile, match=r"its cluster has an unknown key colour"):
        read_samples(file)


def test_samples_without_a_cluster_read_as_before(tmp_path: Path) -> None:
    plain = Samples(operators={PRODUCT: SAMPLE})
    write_samples(plain, tmp_path / "plain.json")
    assert "cluster" not in json.loads((tmp_path / "plain.json").read_text())
    assert read_samples(tmp_path / "plain.json") == plain
    with pytest.raises(InvalidQuestion, match="no cluster local"):
        local_cluster(plain)


def test_the_newer_cluster_wins() -> None:
    newer = Samples(cluster=catalog.cluster("dgx-h100"))
    assert SAMPLES.merged(newer).cluster == newer.cluster
    assert SAMPLES.merged(Samples()).cluster == SAMPLES.cluster
    assert local_cluster(SAMPLES) is SAMPLES.cluster


def test_a_machine_is_known_by_a_plain_name() -> None:
    assert machine.slug("AMD EPYC 7B13 (64)") == "amd-epyc-7b13-64"
    with pytest.raises(InvalidQuestion, match="no letters"):
        machine.slug("()")
    assert machine.cores() >= 1
    assert machine.memory_bytes("MemTotal") >= machine.memory_bytes() > 0


def test_the_document_has_what_json_can_say() -> None:
    assert SAMPLES.cluster is not None
    json.dumps(asdict(SAMPLES.cluster), allow_nan=False)
