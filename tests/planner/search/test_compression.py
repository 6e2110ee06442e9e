"""`plan --compress-activations`: fixed bits, or searched where they help."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.__main__ import main

TIGHT = ("--model", "gpt-13b", "--gpus", "8", "--global-batch", "64", "--pp", "1")


def planned(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    main([*argv, "--json", "--recompute", "none"], prog="plan")
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_bits_are_chosen_where_they_are_worth_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The best of four searches, none of which is more than it."""
    every = {
        bits: planned(capsys, *TIGHT, "--compress-activations", bits)
        for bits in ("none", "8", "4", "2", "auto")
    }
    seconds = {
        bits: one["estimate"]["step_time_s"]
        for bits, one in every.items()
        if one["layout"] is not None
    }
    auto = every["auto"]
    assert seconds.pop("auto") == pytest.approx(min(seconds.values()))
    assert auto["bound"]["lower"] <= auto["estimate"]["step_time_s"] * (1 + 1e-9)
    retentions = [
        plan["retention"]
        for stage in every["4"]["layout"]["stages"]
        for plan in stage["layer_plans"]
        if plan["layers"][0].isdigit()
    ]
    assert all(one["*"] == {"action": "compress", "bits": 4} for one in retentions)


def test_both_ways_are_not_searched_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--offload", "auto", "--compress-activations", "4")
    assert main([*TIGHT, *asked], prog="plan") == 2
    assert "not searched at once" in capsys.readouterr().err
