"""`benchmarks.fit.calibration`: fits find what made the data, and own up to their
error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fit import calibration as fits
from benchmarks.fit.fitting import Parameter, fitted, residual_of
from benchmarks.fit.published import (
    AttentionTimes,
    Products,
    Traffic,
    Transfers,
    thinned,
)
from costmodel.machine.collectives import LinkRates, link_file
from costmodel.machine.rates import load_rates
from profiles.errors import Unmeasured
from profiles.hardware.precisions import Format
from tests.support.toy import toy_device

DEVICE = toy_device()
RATES = load_rates("a100-pcie-80gb")
LINE = (
    Parameter(name="slope", start=1.0, low=0.0, high=10.0),
    Parameter(name="offset", start=1.0, low=0.0, high=10.0),
)
X = np.linspace(1, 10, 40)


def test_a_fit_finds_what_made_the_data() -> None:
    found = fitted(lambda v: v["slope"] * X + v["offset"], 2 * X + 3, LINE)
    assert found.values == pytest.approx({"slope": 2.0, "offset": 3.0})
    assert found.residual.p90 == pytest.approx(0, abs=1e-3)
    assert found.residual.points == 40
    assert found.residual.held_out_p90 == pytest.approx(0, abs=1e-3)


def test_outliers_do_not_move_it() -> None:
    measured = 2 * X + 3
    measured[::10] *= 5
    found = fitted(lambda v: v["slope"] * X + v["offset"], measured, LINE)
    assert found.values["slope"] == pytest.approx(2.0, rel=0.05)
    assert found.residual.median < 0.02, "most points are met"
    assert found.errors["slope"] < 0.2


def test_few_points_are_not_held_out() -> None:
    few = X[:5]
    found = fitted(lambda v: v["slope"] * few + v["offset"], 2 * few + 3, LINE)
    assert found.residual.held_out_median is None


def test_fewer_points_than_parameters_are_refused() -> None:
    with pytest.raises(Unmeasured, match="slope, offset"):
        fitted(lambda v: v["slope"] * X[:1], X[:1], LINE)


def test_residuals_are_relative() -> None:
    found = residual_of(np.linspace(0, 1, 11), np.array([0.5]))
    assert (found.median, found.p90, found.points) == (0.5, 0.9, 11)
    assert (found.held_out_median, found.held_out_p90) == (0.5, 0.5)


def products(rng: np.random.Generator, points: int = 60) -> Products:
    sides = rng.integers(4, 80, (3, points, 1)) * 128.0
    table = Products(
        m=sides[0],
        n=sides[1],
        k=sides[2],
        batch=np.ones((points, 1)),
        counts=np.ones((points, 1)),
        output_bytes=np.full((points, 1), 2.0),
        seconds=np.ones(points),
        number=Format.BF16,
    )
    return replace(table, seconds=fits.products_s(table, DEVICE, RATES))


def test_products_give_their_rates_back() -> None:
    table = products(np.random.default_rng(0))
    start = fits.with_matmul(RATES, {"fill_k": 50.0, "sustained": 0.6}, Format.BF16)
    found = fits.fit_matmul(table, DEVICE, start)
    assert found.residual.p90 < 0.03
    assert found.values["sustained"] == pytest.approx(RATES.matmul.default, rel=0.05)


def test_rows_of_two_products_add_up() -> None:
    table = products(np.random.default_rng(1), points=4)
    twice = replace(
        table,
        m=np.repeat(table.m, 2, axis=1),
        n=np.repeat(table.n, 2, axis=1),
        k=np.repeat(table.k, 2, axis=1),
        batch=np.repeat(table.batch, 2, axis=1),
        counts=np.repeat(table.counts, 2, axis=1),
        output_bytes=np.repeat(table.output_bytes, 2, axis=1),
    )
    assert fits.products_s(twice, DEVICE, RATES) == pytest.approx(2 * table.seconds)


def test_groups_give_their_cost_back() -> None:
    table = products(np.random.default_rng(2), points=10)
    table = replace(table, batch=np.linspace(2, 64, 10)[:, None])
    table = replace(table, seconds=fits.grouped_s(table, DEVICE, RATES))
    found = fits.fit_groups(table, DEVICE, RATES)
    assert found.values["group_s"] == pytest.approx(RATES.matmul.group_s, rel=0.01)


def test_attention_gives_its_rate_back() -> None:
    sequence = np.repeat([1024.0, 4096.0], 15)
    heads = np.tile([4.0, 8.0, 16.0, 32.0, 64.0], 6)
    head_dim = np.tile(np.repeat([64.0, 128.0, 256.0], 5), 2)
    blank = AttentionTimes(
        batch_heads=heads,
        sequence=sequence,
        head_dim=head_dim,
        seconds=np.ones(30),
    )
    rate = RATES.attention["flash-2"]
    both = fits.flash_s(rate, blank, blank, DEVICE, RATES)
    forward = replace(blank, seconds=both[:30])
    backward = replace(blank, seconds=both[30:])
    found = fits.fit_attention(forward, backward, DEVICE, RATES)
    assert found.values["forward"] == pytest.approx(rate.forward, rel=0.01)
    assert found.values["backward"] == pytest.approx(rate.backward, rel=0.01)


def test_traffic_and_scores_give_their_shares_back() -> None:
    size = np.geomspace(1e7, 1e9, 30)
    table = Traffic(size_bytes=size, seconds=size / (0.7 * 2e12) + 4e-6)
    assert fits.fit_traffic(table, DEVICE, 4e-6).values == pytest.approx(
        {"fraction": 0.7}
    )
    traffic = RATES.traffic
    seconds = size * 9 / (traffic.fraction * 2e12) + 2 * traffic.overhead_s
    scores = Traffic(size_bytes=size, seconds=seconds)
    found = fits.fit_scores(scores, DEVICE, RATES)
    assert found.values["bytes_per_score"] == pytest.approx(9)


LINKS = LinkRates(
    inner=link_file().rates["nvlink3"],
    outer=link_file().rates["infiniband"],
    inner_bytes_per_s=300e9,
    outer_bytes_per_s=25e9,
    domain=8,
)


def transfers(nodes: float) -> Transfers:
    ranks, size = np.meshgrid([2.0, 4.0, 8.0], np.geomspace(1e6, 1e9, 15))
    blank = Transfers(
        ranks=ranks.ravel() * nodes,
        nodes=np.full(ranks.size, nodes),
        size_bytes=size.ravel(),
        seconds=np.ones(ranks.size),
    )
    return replace(blank, seconds=fits.all_reduces_s(blank, LINKS))


def test_links_give_their_rates_back() -> None:
    four = (fits.FRACTION, fits.HALF, fits.LAUNCH, fits.HOP)
    inner = fits.fit_inner(transfers(1), LINKS, four)
    assert inner.values["fraction"] == pytest.approx(LINKS.inner.fraction, rel=0.01)
    assert inner.values["launch_s"] == pytest.approx(LINKS.inner.launch_s, rel=0.05)
    outer = fits.fit_outer(transfers(4), LINKS, (fits.FRACTION,))
    assert outer.values["fraction"] == pytest.approx(LINKS.outer.fraction, rel=0.01)
    changed = fits.link_with(LINKS.outer, outer, "unit test")
    assert changed.source == "unit test"
    assert changed.residual == outer.residual


@pytest.mark.parametrize("near", [True, False])
def test_sends_give_their_share_back(near: bool) -> None:
    size = np.geomspace(1e6, 1e9, 12)
    line, link = (300e9, LINKS.inner) if near else (25e9, LINKS.outer)
    moved = size + np.sqrt(link.half_bytes * size)
    pairs = Transfers(
        ranks=np.full(12, 2.0),
        nodes=np.full(12, 1.0),
        size_bytes=size,
        seconds=link.launch_s + moved / (line * 0.4),
    )
    found = fits.fit_send(pairs, LINKS, same_node=near)
    assert found.values["send_fraction"] == pytest.approx(0.4)


def test_thinning_keeps_every_number_of_ranks() -> None:
    thin = thinned(transfers(1), per_group=5)
    assert sorted(set(thin.ranks)) == [2, 4, 8]
    assert len(thin) <= 15
    assert thin.size_bytes.max() == pytest.approx(1e9)
