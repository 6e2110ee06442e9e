"""`tests.support.apart`: what the numerics are judged by."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
import torch

from tests.support.apart import (
    Distance,
    apart,
    distances,
    farthest,
    largest,
    together,
    worst,
)
from tests.support.training import SGD, reference

WANTED = {"one": torch.tensor([3.0, 4.0]), "two": torch.tensor([0.0])}


def test_one_tensor_by_itself_shows_what_all_together_hide() -> None:
    small = {"large": torch.full((100,), 10.0), "small": torch.tensor([1e-3])}
    found = distances(small | {"small": torch.tensor([2e-3])}, small)
    assert together(found.values()) == pytest.approx(1e-5)
    away, name = worst(found)
    assert name == "small"
    assert away == pytest.approx(1.0)


def test_what_should_be_zero_must_be() -> None:
    found = distances(WANTED | {"two": torch.tensor([1e-9])}, WANTED)
    assert worst(found) == (inf, "two")
    assert apart(WANTED, WANTED) == 0.0


def test_what_is_no_number_is_infinitely_far_away() -> None:
    broken = WANTED | {"one": torch.tensor([float("nan"), 4.0])}
    assert apart(broken, WANTED) == inf
    assert farthest([distances(WANTED, WANTED), distances(broken, WANTED)])[
        "one"
    ] == Distance(inf, 25.0)

    assert largest([0.1, float("nan"), 0.2]) == inf
    assert largest([0.1, 0.2, 0.1]) == 0.2


def test_of_copies_the_farthest_counts_on_whichever_rank() -> None:
    near = distances(WANTED, WANTED)
    far = distances({"one": torch.tensor([3.0, 5.0])}, WANTED)
    for ranks in ([near, far], [far, near]):
        assert farthest(ranks)["one"].relative == pytest.approx(0.2)


@pytest.mark.slow
def test_a_gradient_of_the_wrong_size_shows_under_sgd() -> None:
    """A rate that is 1 % larger is as gradients that are: every tensor is then farther
    away than the matrix allows."""
    wanted = reference("gpt", SGD)
    scaled = reference("gpt", replace(SGD, lr=1.01 * SGD.lr))
    start = wanted["start"]
    updates = [
        {name: one - start[name] for name, one in seen["parameters"].items()}
        for seen in (scaled, wanted)
    ]
    assert min(one.relative for one in distances(*updates).values()) > 1e-3
