"""What stands before no option: a model, or a file that holds a layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costmodel.cli import simulate
from planner.cli import plan

Ask = Callable[..., tuple[int, str, str]]
SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 "
    "--num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--vocab-size 50304 --micro-batch-size 1 --global-batch-size 64 --bf16 "
    "--tensor-model-parallel-size 8\n"
)


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def asking(command: Any, *argv: str) -> tuple[int, str, str]:
        code = command.run([str(one) for one in argv])
        return code, *capsys.readouterr()

    return asking


@pytest.mark.parametrize("command", [simulate, plan])
def test_a_model_may_be_named_without_its_option(ask: Ask, command: Any) -> None:
    asked = ("--gpus", "2", "--json")
    code, out, _ = ask(command, "gpt-tiny", *asked)
    other, said, _ = ask(command, "--model", "gpt-tiny", *asked)
    assert (code, other) == (0, 0)
    ours, theirs = json.loads(out), json.loads(said)
    for document in (ours, theirs):
        document.pop("search", None)
    assert ours == theirs


@pytest.mark.parametrize("command", [simulate, plan])
def test_a_model_file_is_a_model(ask: Ask, command: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"layers": 2, "hidden": 64, "heads": 4, "vocab": 128}')
    code, out, _ = ask(command, path, "--gpus", "1", "--json")
    assert code == 0
    assert json.loads(out)["layout"] is not None


def test_a_layout_is_priced_and_improved(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    made = ("gpt-125m", "--gpus", "8", "--tp", "4", "--out", path, "--json")
    step_s = json.loads(ask(simulate, *made)[1])["step_time_s"]
    assert json.loads(ask(simulate, path, "--json")[1])["step_time_s"] == step_s
    code, out, _ = ask(plan, path, "--json", "--top", "0")
    assert code == 0
    document = json.loads(out)
    assert document["from"]["format"] == "meshwright layout file"
    assert document["estimate"]["step_time_s"] < step_s


@pytest.mark.parametrize("command", [simulate, plan])
def test_arguments_of_another_framework_are_read(
    ask: Ask, command: Any, tmp_path: Path
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    code, out, _ = ask(command, path, "--json")
    other, said, _ = ask(command, "--from", path, "--json")
    assert (code, other) == (0, 0)
    assert json.loads(out)["from"] == json.loads(said)["from"]
    assert json.loads(out)["from"]["framework"] == "megatron-core"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("gpt-13b", "--model", "gpt-7b"), "gpt-13b and --model gpt-7b"),
        (("train.sh", "--from", "other.sh"), "train.sh and --from other.sh"),
        (("nowhere.json",), "cannot be read"),
        (("gpt-13x",), "did you mean gpt-13b"),
        (("gpt-13b", "gpt-7b"), "unexpected extra argument"),
    ],
)
@pytest.mark.parametrize("command", [simulate, plan])
def test_two_subjects_and_none_are_refused(
    ask: Ask,
    command: Any,
    argv: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text(SCRIPT)
    code, out, err = ask(command, *argv, "--gpus", "8")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
