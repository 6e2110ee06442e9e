"""`plan --from` and `plan --export`: a present configuration, and the plan in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.__main__ import main
from tests.support.rows import Obtained

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
SMALL = ("--model", "gpt-350m", "--gpus", "8", "--global-batch", "64")


def plan(*argv: str) -> int:
    return main([*argv], prog="plan")


def answered(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert plan(*argv, "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert plan(*argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    lines = [one for one in said.err.splitlines() if "warning:" not in one]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("file", "more"),
    [
        ("megatron_gpt3_175b.sh", ()),
        ("deepspeed_zero3.json", ("--model", "llama2-13b", "--gpus", "16")),
        ("torchtitan_llama3_70b.toml", ("--cluster", "dgx-h100", "--gpus", "256")),
    ],
)
def test_public_configurations_are_priced_and_improved(
    capsys: pytest.CaptureFixture[str], file: str, more: tuple[str, ...]
) -> None:
    document = answered(capsys, "--from", str(EXAMPLES / file), *more)
    now, better = document["from"]["estimate"], document["estimate"]
    assert now["fits"]
    assert better["step_time_s"] < now["step_time_s"]
    change = document["improvement"]
    total = sum(one["step_time_s"] for one in change["changes"])
    assert total == pytest.approx(better["step_time_s"] - now["step_time_s"])
    assert change["speedup"] == pytest.approx(
        now["step_time_s"] / better["step_time_s"]
    )
    layout = document["from"]["layout"]
    batch = layout["summary"]["dp"] * layout["summary"]["micro_batch"]
    assert document["job"]["global_batch"] == layout["micro_batches"] * batch


def test_the_plan_keeps_to_the_file_s_framework(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ("--from", str(EXAMPLES / "megatron_gpt3_175b.sh"))
    assert answered(capsys, *argv)["from"]["framework"] == "megatron-core"
    other = answered(capsys, *argv, "--framework", "megatron-lm")
    assert other["from"]["framework"] == "megatron-lm"


def test_a_plan_is_exported_and_read_back_as_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    into = ("--export", "megatron", "--export-to", str(tmp_path))
    first = answered(capsys, *SMALL, *into)
    assert first["assumed"]["framework"] == "megatron-core"
    assert set(first["exports"]["megatron"]) == {"megatron.sh"}
    again = answered(capsys, "--from", str(tmp_path / "megatron.sh"))
    assert again["from"]["layout"] == first["layout"]
    assert again["from"]["estimate"]["step_time_s"] == first["estimate"]["step_time_s"]
    assert again["improvement"]["changes"] == []


def test_our_own_layout_file_is_a_present_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = str(tmp_path / "layout.json")
    pinned = ("--tp", "4", "--pp", "2", "--out", file)
    first = answered(capsys, *SMALL, *pinned)
    found = answered(capsys, "--from", file)
    assert found["from"]["layout"] == first["layout"]
    assert found["improvement"]["speedup"] > 1


def test_pins_hold_for_the_plan_and_not_for_the_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = str(EXAMPLES / "torchtitan_llama3_70b.toml")
    where = ("--cluster", "dgx-h100", "--gpus", "256")
    document = answered(capsys, "--from", file, *where, "--tp", "4")
    assert document["from"]["layout"]["summary"]["tp"] == 8
    assert document["layout"]["summary"]["tp"] == 4


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ("--from", str(EXAMPLES / "deepspeed_zero3.json"), "--gpus", "16"),
            "--model is missing",
        ),
        (
            ("--from", str(EXAMPLES / "deepspeed_zero3.json"), "--model", "gpt-13b"),
            "--gpus is missing",
        ),
        (("--from", "nowhere.sh"), "cannot be read"),
        (("--from", str(EXAMPLES)), "folder"),
        (
            ("--from", str(EXAMPLES / "megatron_gpt3_175b.sh"), "--gpus", "64"),
            "--gpus 64 is not 1024",
        ),
        (
            ("--from", str(EXAMPLES / "megatron_gpt3_175b.sh"), "--model", "gpt-13b"),
            "has layers 40",
        ),
        ((*SMALL, "--export", "megatorn"), "did you mean megatron"),
        ((*SMALL, "--export-to", "x"), "add --export"),
        ((*SMALL[:3], "8,16", "--export", "megatron"), "--export is about one plan"),
        (
            (
                *SMALL,
                "--framework",
                "megatron-core",
                "--tp",
                "4",
                "--export",
                "trainer",
            ),
            "--export trainer",
        ),
    ],
)
def test_wrong_questions_are_one_line(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, *argv)


def test_nothing_is_written_where_one_target_cannot(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "layout.json"
    into = ("--export", "megatron,trainer", "--export-to", str(tmp_path / "x"))
    said = refused(capsys, *SMALL, "--tp", "2", *into, "--out", str(out))
    assert "--export trainer" in said
    assert not out.exists()
    assert not (tmp_path / "x").exists()


@pytest.mark.row(
    "C2",
    "step of the plan over that of the ladder",
    expected="at most 1",
    evidence="derived: a plan is the best of its space",
)
def test_the_ladder_of_hugging_face_goes_to_accelerate(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, obtained: Obtained
) -> None:
    """Row C2: the ladder's choice exported, and never better than the plan."""
    question = ("--model", "gpt-6.7b", "--gpus", "16", "--global-batch", "256")
    ours = ("--framework", "fsdp2")
    into = ("--export", "accelerate", "--export-to", str(tmp_path))
    ladder = answered(capsys, *question, *ours, "--search", "hf-ladder", *into)
    assert "FSDP" in ladder["exports"]["accelerate"]["accelerate.yaml"]
    best = answered(capsys, *question, *ours)
    ratio = best["estimate"]["step_time_s"] / ladder["estimate"]["step_time_s"]
    obtained(f"{ratio:.2f}")
    assert best["estimate"]["step_time_s"] <= ladder["estimate"]["step_time_s"]
