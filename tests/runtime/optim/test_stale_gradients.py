"""Late gradients: what remedies do, on problems whose solution is known."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from torch import Tensor, nn

from profiles.errors import Contradiction
from runtime.optim.lateness import (
    REMEDIES,
    Lateness,
    rate_factor,
    require_remedy,
    spike_factors,
)
from runtime.optim.optimizer import Optimizer, Settings
from runtime.optim.stale_gradients import Remedy
from runtime.optim.weight_versions import WeightVersions
from tests.support.rows import Obtained

CURVATURES = torch.tensor([0.1, 0.5, 1.0])
MOMENTUM = 0.99


def descended(name: str, late: int, rate: float, steps: int = 1200) -> float:
    """How far a quadratic bowl's bottom is after *steps* of momentum whose gradients
    are *late*; at first 1."""
    weights = nn.Parameter(torch.ones(3) / 3**0.5)
    settings = Settings(
        name="sgd-momentum", lr=rate, beta1=MOMENTUM, weight_decay=0.0, clip=0.0
    )
    optimizer = Optimizer([("weights", weights)], settings)
    remedy = Remedy(optimizer, name, Lateness(updates=late, tau=late + 1.0), steps=100)
    made: deque[Tensor] = deque()
    for step in range(steps + late):
        with remedy.forward():
            made.append(CURVATURES * weights.detach())
        if len(made) > late:
            remedy.update({"weights": made.popleft()}, 1.0, step=step)
    return float(weights.detach().norm())


@pytest.mark.row(
    "E4",
    "distance from a quadratic's minimum, at first 1: as they come; with both remedies",
    expected="diverges; converges",
    evidence="computed",
)
@pytest.mark.parametrize(("late", "rate"), [(2, 0.06), (4, 0.02), (6, 0.01)])
def test_remedies_converge_where_late_gradients_diverge(
    late: int, rate: float, obtained: Obtained
) -> None:
    """Kosson et al. (MLSys 2021): of a convex quadratic, with the same rate; neither of
    the two does alone what both do."""
    plain, both = (descended(name, late, rate) for name in ("none", "spike+predict"))
    obtained(f"D {late}: {plain:.0e}; {both:.0e}")
    assert plain > 1e6
    assert both < 1e-4
    for name in ("spike", "predict"):
        assert descended(name, late, rate) > 100 * both


@pytest.mark.parametrize("name", ["spike", "predict"])
def test_each_of_the_two_helps(name: str) -> None:
    assert descended("none", 4, 0.01) > 1e6
    assert descended(name, 4, 0.01) < 0.01


def test_a_slower_start_converges_where_the_full_rate_is_too_fast_for_none() -> None:
    """T1 ends: a rate that late gradients stand for good is reached step by step."""
    first = [rate_factor(step, 100, 13.0) for step in (0, 50, 100)]
    assert first == pytest.approx([1 / 13, 13**-0.5, 1.0])
    assert rate_factor(0, 100, 0.25) == 1.0


def test_on_time_a_remedy_changes_nothing() -> None:
    plain = descended("none", 0, 0.05, steps=20)
    for name in REMEDIES:
        if "t1" not in name:
            assert descended(name, 0, 0.05, steps=20) == plain


def test_spike_compensation_is_the_impulse_that_was_missed() -> None:
    """After D steps without it a gradient has moved weights by g · (1 + mu + … +
    mu^(D - 1)) less: b of it is that, and a is what is left of its velocity."""
    a, b = spike_factors(0.9, 4)
    assert b == pytest.approx(sum(0.9**power for power in range(4)))
    assert a == pytest.approx(0.9**4)


def test_one_update_by_hand() -> None:
    """w = 1 - lr · (a·v + b·g') with v = g' at first, and g' = g + decay · w."""
    weights = nn.Parameter(torch.ones(1, 1))
    settings = Settings(
        name="sgd-momentum", lr=0.1, beta1=0.5, weight_decay=0.2, clip=0.0
    )
    optimizer = Optimizer([("weights", weights)], settings)
    remedy = Remedy(optimizer, "spike", Lateness(updates=2, tau=3.0))
    remedy.update({"weights": torch.full((1, 1), 2.0)}, 0.5, step=0)
    made = 0.5 * 2.0 + 0.2
    assert weights.item() == pytest.approx(1 - 0.1 * (0.25 * made + 1.5 * made))


def test_a_backward_gets_back_what_a_forward_had() -> None:
    """T2: weights that move evenly are known D steps later from their mean step."""
    weights = nn.Parameter(torch.zeros(1))
    optimizer = Optimizer(
        [("weights", weights)], Settings(name="sgd", lr=0.1, weight_decay=0.0)
    )
    remedy = Remedy(optimizer, "t1+t2", Lateness(updates=3, tau=4.0))
    for step in range(40):
        remedy.update({"weights": torch.ones(1)}, 1.0, step=step)
    now = weights.item()
    with remedy.backward():
        assert weights.item() == pytest.approx(now + 3 * 0.1, abs=1e-3)
    assert weights.item() == now


def test_remedies_that_do_not_apply_are_refused() -> None:
    with pytest.raises(Contradiction, match="--optimizer sgd-momentum"):
        require_remedy("spike", optimizer="adamw", stashes=False)
    with pytest.raises(Contradiction, match="pipemare or pb"):
        require_remedy("t1+t2", optimizer="adamw", stashes=True)
    with pytest.raises(Contradiction, match="pipemare or pb"):
        require_remedy("spike+predict", optimizer="sgd-momentum", stashes=True)
    require_remedy("spike+predict", optimizer="sgd-momentum", stashes=False)
    require_remedy("t1", optimizer="adamw", stashes=True)


def test_a_version_stays_as_it_was_and_its_room_is_used_again() -> None:
    weights = nn.Parameter(torch.zeros(2))
    versions = WeightVersions([weights])
    for update in range(1, 4):
        versions.renew(oldest=max(update - 2, 0))
        weights.data.add_(1.0)
    assert versions.newest == 3
    assert versions.held == 3
    versions.use(1)
    assert weights.tolist() == [1, 1]
    versions.use(3)
    assert weights.tolist() == [3, 3]


def test_one_version_is_updated_where_it_lies() -> None:
    weights = nn.Parameter(torch.zeros(2))
    versions, at = WeightVersions([weights]), weights.data_ptr()
    versions.renew(oldest=versions.newest + 1)
    assert (weights.data_ptr(), versions.held) == (at, 1)


def test_an_update_is_no_change_to_a_graph_that_is_in_flight() -> None:
    """What autograd has saved of a weight is read as it is at the backward."""
    layer, given = nn.Linear(2, 2, bias=False), torch.ones(1, 2, requires_grad=True)
    optimizer = Optimizer(
        layer.named_parameters(), Settings(name="sgd", lr=1.0, weight_decay=0.0)
    )
    made = layer(given).sum()
    before = layer.weight.detach().clone()
    optimizer.step({"weight": torch.ones(2, 2)})
    made.backward()
    assert given.grad is not None
    torch.testing.assert_close(given.grad, (before - 1).sum(0, keepdim=True))
