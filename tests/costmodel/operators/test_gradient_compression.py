"""`--compress-gradients`: shares of the bytes that travel."""

from __future__ import annotations

import pytest

from costmodel.operators.gradient_compression import GradientCompression
from profiles.errors import InvalidSpec
from profiles.hardware.precisions import precision
from tests.golden.priced import job_of
from tests.support.commanded import refused, simulate
from tests.support.rows import Obtained

GRAPH = job_of("gpt-1.3b", 8).graph
ASKED = ("--model", "gpt-1.3b", "--gpus", "16", "--global-batch", "64")


@pytest.mark.row(
    "I7",
    "volume of 1-bit Adam after the warm-up, of fp32 and 16-bit gradients",
    expected="1/32; 1/16",
    evidence="computed",
)
@pytest.mark.parametrize(("format", "share"), [("fp32", 1 / 32), ("bf16", 1 / 16)])
def test_a_bit_is_a_32nd_or_a_16th(
    format: str, share: float, obtained: Obtained
) -> None:
    """ "1-bit: 1/16 to 1/32 after the warm-up."""
    rules = precision("bf16", gradient=format)
    obtained(f"1/{1 / GradientCompression.parse('1bit').share(GRAPH, 1, rules):g}")
    assert GradientCompression.parse("1bit").share(GRAPH, 1, rules) == share


def test_low_rank_by_hand() -> None:
    """24 layers of h 2048: 4 products; a table of 51,200, positions of 2,048."""
    h, rank = 2048, 4
    found = GradientCompression.parse(f"powersgd:{rank}")
    shapes = 24 * [(3 * h, h), (h, h), (4 * h, h), (h, 4 * h)]
    shapes += [(51200, h), (h, h)]  # the head has the table
    matrices = sum(one * two for one, two in shapes)
    vectors = 24 * (3 * h + h + 4 * h + h + 4 * h) + 2 * h
    sent = sum(rank * (one + two) for one, two in shapes) + vectors
    share = found.share(GRAPH, 1, precision("fp32"))
    assert share == pytest.approx(sent / (matrices + vectors), rel=1e-9)
    assert found.share(GRAPH, 4, precision("fp32")) > share  # narrower matrices


def test_small_matrices_stay_as_they_are() -> None:
    assert not GradientCompression.parse("powersgd:64").shrinks(128, 128)
    assert GradientCompression.parse("powersgd:8").shrinks(128, 128)


@pytest.mark.parametrize("text", ["zip", "powersgd", "powersgd:0", "1bit:x", "bf16:2"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="choose none, bf16, powersgd:RANK"):
        GradientCompression.parse(text)


def test_the_command_prices_less(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    seconds = {}
    asked = (*ASKED, "--zero", "0", "--json")
    for how in ("none", "bf16", "1bit", "powersgd:4"):
        assert simulate(*asked, "--compress-gradients", how) == 0
        document = json.loads(capsys.readouterr().out)
        seconds[how] = document["breakdown_s"]["data_comm"]
        assert any("gradients by" in one for one in document["warnings"]) == (
            how != "none"
        )
    assert seconds["none"] > seconds["bf16"] > seconds["1bit"]
    assert seconds["bf16"] > seconds["powersgd:4"]
    line = refused(capsys, *ASKED, "--zero", "1", "--compress-gradients", "bf16")
    assert "--zero 0" in line


@pytest.mark.parametrize(
    ("how", "given", "said"),
    [
        ("1bit", ("--optimizer", "sgd"), "is 1-bit Adam, not sgd"),
        ("bf16", ("--pp", "2", "--schedule", "chimera"), "of two copies"),
        ("bf16", ("--offload", "optimizer"), "offloaded"),
        ("bf16", ("--model", "mixtral-8x7b"), "experts"),
    ],
)
def test_what_is_not_trained_so_is_not_priced(
    how: str, given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*ASKED, "--zero", "0", "--compress-gradients", how, *given]
    if "--model" in given:
        del asked[asked.index("--model") : asked.index("--model") + 2]
    assert said in refused(capsys, *asked)
