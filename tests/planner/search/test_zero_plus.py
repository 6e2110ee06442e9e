"""`plan` with ZeRO++: the best degrees under it, as simulating all of them says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.__main__ import main

ASKED = (
    *("--model", "gpt-1.3b", "--gpus", "32", "--global-batch", "64"),
    *("--cluster", "dgx-v100-32gb", "--framework", "deepspeed"),
)
PLUS = ("--zero-quantized-weights", "--zero-quantized-gradients")
SECOND = ("--zero-hpz-partition-size", "8")


def planned(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main([*ASKED, *argv, "--json"], prog="plan") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_it_is_pinned_and_proven(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, *PLUS, *SECOND)
    every = planned(capsys, *PLUS, *SECOND, "--search", "exhaustive")
    assert found["layout"]["zero_hpz_partition_size"] == 8
    assert found["layout"]["zero_quantized_weights"] is True
    assert found["layout"]["summary"]["zero"] == 3
    assert found["layout"]["summary"]["zero_group"] == 32
    assert found["estimate"]["step_time_s"] == every["estimate"]["step_time_s"]
    assert found["bound"]["lower"] <= found["estimate"]["step_time_s"]
    plain = planned(capsys, "--zero", "3", "--zero-group", "32")
    assert found["estimate"]["step_time_s"] < plain["estimate"]["step_time_s"]


def test_what_it_is_not_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, *PLUS, "--zero", "1"], prog="plan") == 2
    experts = ("--model", "mixtral-8x7b", "--gpus", "8")
    assert main([*experts, *PLUS], prog="plan") == 2
    assert "with experts" in capsys.readouterr().err
