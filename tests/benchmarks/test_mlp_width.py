"""From which width on two ranks are faster: found between points, and by price."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from benchmarks.mlp_width import Point, crossover, priced, table
from benchmarks.mlp_width_worker import Layer
from tests.runtime.ranks import on_ranks
from tests.support.rows import Obtained
from tests.support.sampled import on

ANY = (32, 64, 128, 256, 512, 1024, 2048)


def points(*gains: float) -> list[Point]:
    return [
        Point(rows=1, width=2**number, whole_s=gain, split_s=1.0)
        for number, gain in enumerate(gains)
    ]


def test_the_last_width_at_which_splitting_loses_counts() -> None:
    assert crossover(points(0.5, 1.1, 0.5, 2.0, 3.0)) == pytest.approx(2**2.5)


@pytest.mark.parametrize("gains", [(0.1, 0.5, 0.9), (1.5, 2.0), (2.0, 0.5)])
def test_where_it_never_wins_or_always_there_is_none(gains: tuple[float, ...]) -> None:
    assert crossover(points(*gains)) is None


@pytest.mark.parametrize("rows", [64, 512])
def test_two_ranks_are_faster_from_some_width_on(rows: int) -> None:
    """By the samples of a made-up machine, whose messages cost 0.2 ms."""
    where = on(ranks=2)
    found = [priced(where, rows, width) for width in ANY]
    gains = [one.whole_s / one.split_s for one in found]
    assert gains[0] < 1 < gains[-1] < 2
    assert gains[2:] == sorted(gains[2:])
    assert crossover(found) is not None


@pytest.mark.row(
    "E2",
    "width from which two gloo ranks win: predicted for measured",
    expected="within twice",
    evidence="measured: `benchmarks/mlp_width.py`, on the CPU of docs/profile.md",
)
def test_what_was_measured_is_within_twice(root: Path, obtained: Obtained) -> None:
    page = (root / "docs" / "profile.md").read_text()
    inside = page.partition("<!-- widths -->")[2].partition("<!-- end")[0]
    widths = re.findall(r"^\| \d+ \| (\d+) \| (\d+) \|$", inside, re.M)
    assert len(widths) == 2
    for predicted, measured in widths:
        obtained(f"{predicted} for {measured}")
        assert 0.5 < int(predicted) / int(measured) < 2


def test_fewer_rows_take_a_wider_layer() -> None:
    where = on(ranks=2)
    few, many = (
        crossover([priced(where, rows, width) for width in ANY]) for rows in (64, 512)
    )
    assert few is not None
    assert many is not None
    assert few > many


def test_the_table_ends_each_number_of_rows_with_both_widths() -> None:
    here = points(0.5, 2.0)
    lines = list(table(here, lambda rows, width: here[0 if width == 1 else 1]))
    assert lines[-1] == "| 1 | **n\\*** | | | | | 1 | 1 |"


def test_a_split_layer_computes_what_the_whole_one_does() -> None:
    whole = _passes(1, 0)
    for rank, split in enumerate(on_ranks(2, _of_rank)):
        ours = slice(4 * rank, 4 * rank + 4)
        for name in ("out", "input"):
            torch.testing.assert_close(split[name], whole[name])
        torch.testing.assert_close(split["up"], whole["up"][ours])
        torch.testing.assert_close(split["down"], whole["down"][:, ours])


def _of_rank(rank: int) -> dict[str, torch.Tensor]:
    return _passes(2, rank)


def _passes(ranks: int, rank: int) -> dict[str, torch.Tensor]:
    """Output and gradients of a layer of width 8 on one of the ranks."""
    torch.manual_seed(0)
    full, part = Layer(8, 1), Layer(8, ranks)
    ours = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
    with torch.no_grad():
        part.up.weight.copy_(full.up.weight[ours])
        part.up.bias.copy_(full.up.bias[ours])
        part.down.weight.copy_(full.down.weight[:, ours])
        part.down.bias.copy_(full.down.bias)
    torch.manual_seed(1)
    x = torch.randn(3, 8, requires_grad=True)
    made = part(x)
    made.backward(torch.randn(3, 8))
    found = {"out": made.detach()}
    leaves = {"input": x, "up": part.up.weight, "down": part.down.weight}
    for name, one in leaves.items():
        assert one.grad is not None
        found[name] = one.grad
    return found
