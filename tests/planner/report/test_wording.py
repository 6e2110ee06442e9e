"""What the lines of a plan say, word by word, where a bare number would be cryptic."""

from __future__ import annotations

import re

import pytest

from planner.__main__ import main as plan
from planner.report.tables import _rest_words

GPT = ("--model", "gpt-13b", "--gpus", "64", "--top", "0")


def test_a_bound_says_what_it_bounds() -> None:
    assert _rest_words(0.1073, 2) == "the rest at most 10.73% faster than this plan"
    assert _rest_words(1e-6, 2) == "the rest at most 0.01% faster than this plan"
    for none in (-0.2, 0.0):
        assert _rest_words(none, 2) == "none of the rest can be faster than this plan"


@pytest.mark.parametrize(
    ("framework", "recompute"),
    [
        ("meshwright", r"chosen per stage, .* than one choice for all stages"),
        ("megatron-deepspeed", r"of the first layers alone, .* of all layers"),
    ],
)
def test_what_was_looked_at_beside_the_space(
    capsys: pytest.CaptureFixture[str], framework: str, recompute: str
) -> None:
    pins = ("--framework", framework, "--tp", "2", "--pp", "2", "--zero", "1")
    assert plan([*GPT, *pins, "--details"], "plan") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(rf"recompute {recompute} \([\d,]+ of [\d,]+ layouts", said), said
    assert "(other frameworks: --framework, or --compare-frameworks)" in said


def test_a_hybrid_whose_tensor_parallelism_leaves_no_row_of_stages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A set of layouts without one of several stages: priced like any other."""
    pins = ("--gpus", "64", "--tp", "16", "--top", "0", "--micro-batch", "1")
    assert plan(["--model", "nemotron-h-8b", *pins], "plan") == 0
    assert "tp 16" in capsys.readouterr().out
