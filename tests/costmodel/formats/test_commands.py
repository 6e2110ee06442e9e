"""`simulate --from` and `--export` as commands: damage is a line, prices hold."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.commanded import simulate

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
QUESTION = ("--model", "gpt-1.3b", "--gpus", "16", "--global-batch", "256")


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert simulate(*argv, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("target", "file", "pins"),
    [
        ("megatron", "megatron.sh", "--tp 2 --overlap none --framework megatron-core"),
        (
            "megatron",
            "megatron.sh",
            (
                "--tp 2 --pp 2 --overlap grad,param,tp,offload --bucket-mb 160 "
                "--framework megatron-core"
            ),
        ),
        (
            "megatron-deepspeed",
            "megatron_deepspeed.sh",
            "--tp 2 --pp 2 --framework megatron-deepspeed",
        ),
        ("deepspeed", "ds_config.json", "--zero 2 --framework deepspeed"),
        (
            "deepspeed",
            "ds_config.json",
            "--zero 2 --bucket-mb 100 --grad-dtype fp32 --framework deepspeed",
        ),
        ("accelerate", "accelerate.yaml", "--zero 3 --framework fsdp2"),
        ("trainer", "training_arguments.json", "--zero 3 --framework fsdp2"),
    ],
)
def test_what_is_read_back_costs_the_same(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    target: str,
    file: str,
    pins: str,
) -> None:
    if file.endswith("yaml"):
        pytest.importorskip("yaml", reason="PyYAML reads accelerate's file")
    sizes = ("--micro-batch", "2")
    into = ("--export", target, "--export-to", str(tmp_path))
    first = document(capsys, *QUESTION, *sizes, *pins.split(), *into)
    beside = () if file.endswith(".sh") else QUESTION
    more = sizes if target == "accelerate" else ()
    again = document(capsys, "--from", str(tmp_path / file), *beside, *more)
    assert again["layout"] == first["layout"]
    assert again["step_time_s"] == first["step_time_s"]
    assert again["peak_memory_bytes"] == first["peak_memory_bytes"]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("megatron_gpt3_175b.sh", ()),
        ("deepspeed_zero3.json", ("--model", "gpt-1.3b", "--gpus", "16")),
        ("torchtitan_llama3_70b.toml", ("--gpus", "64")),
    ],
)
def test_damaged_files_are_answered_or_refused_in_a_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
    more: tuple[str, ...],
) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    random, file = Random(7), tmp_path / name
    seen = {0: 0, 1: 0, 2: 0}
    for _ in range(25):
        damaged = list(text)
        for _ in range(random.randint(1, 3)):
            place = random.randrange(len(damaged))
            damaged[place] = random.choice("0189=\"'[{}]$ \n-x")
        file.write_text("".join(damaged), encoding="utf-8")
        code = simulate("--from", str(file), *more, "--json")
        said = capsys.readouterr()
        seen[code] += 1  # KeyError: another code is a mistake of ours
        lines = [one for one in said.err.splitlines() if "warning:" not in one]
        assert len(lines) == (code > 0)
        assert "Traceback" not in said.err
        assert (said.out == "") == (code == 2)
    assert seen[0]
    assert seen[2]


def test_what_the_file_says_cannot_be_said_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = str(EXAMPLES / "megatron_gpt3_175b.sh")
    assert simulate("--from", file, "--seq-len", "4096") == 2
    assert "--seq-len 4096 is not 2048" in capsys.readouterr().err
    assert simulate("--from", file, file) == 2
    assert "give one" in capsys.readouterr().err
    assert simulate("--from", file, "--sweep", "tp=1,2") == 2
    assert "--from" in capsys.readouterr().err


def test_defaults_and_what_is_left_aside_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document(capsys, "--from", str(EXAMPLES / "megatron_gpt3_175b.sh"))
    assert found["assumed"]["vocab"] == 50257
    assert found["assumed"]["attention_dropout"] == 0.1
    assert "--lr" in found["from"]["ignored"]
    assert any("--rampup-batch-size" in one for one in found["warnings"])
