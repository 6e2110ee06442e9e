"""Laws of the price functions: more never costs less, nothing beats the hardware."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.machine.collectives import (
    Collective,
    LinkRates,
    collective_s,
    link_file,
    send_s,
)
from costmodel.machine.kernels import (
    DIRECTIONS,
    KERNELS,
    AttentionShape,
    attention_s,
    grouped_matmul_s,
    matmul_flops,
    matmul_s,
    traffic_s,
)
from costmodel.machine.rates import RATES, Rates, load_rates
from profiles.hardware.precisions import Format
from tests.support.toy import figure, toy_device

GB = 1e9
LINKS = sorted(link_file().rates)
DEVICES = sorted(path.stem for path in RATES.glob("*.json") if path.stem != "links")

dimension = st.integers(1, 20_000)
more = st.integers(0, 5_000)
few = st.integers(1, 64)
devices = st.sampled_from(DEVICES)
size = st.floats(0, 1e12)


DEVICE = toy_device(
    architecture="none",
    peak={
        "bf16": figure(312, "TFLOP/s"),
        "fp8": figure(624, "TFLOP/s"),
        "fp32": figure(19.5, "TFLOP/s"),
    },
)


def product_s(shape: tuple[int, ...], rates: Rates) -> float:
    return float(matmul_s(*shape, device=DEVICE, rates=rates, number=Format.BF16))


@given(devices, st.tuples(dimension, dimension, dimension, few), st.tuples(*[more] * 4))
def test_a_larger_product_never_costs_less(
    name: str, shape: tuple[int, ...], extra: tuple[int, ...]
) -> None:
    larger = tuple(a + b for a, b in zip(shape, extra, strict=True))
    rates = load_rates(name)
    assert product_s(shape, rates) <= product_s(larger, rates) * (1 + 1e-12)


@given(devices, st.tuples(dimension, dimension, dimension, few))
def test_no_product_beats_the_datasheet(name: str, shape: tuple[int, ...]) -> None:
    m, n, k, batch = shape
    seconds = product_s(shape, load_rates(name))
    assert seconds >= float(matmul_flops(*shape)) / DEVICE.peak_flops_per_s(Format.BF16)
    assert seconds >= 2 * batch * (m * k + k * n + m * n) / DEVICE.memory_bytes_per_s


@pytest.mark.row(
    "E11",
    "half a product takes at least half as long",
    expected="always",
    evidence="derived",
)
@given(devices, dimension, dimension, dimension, st.sampled_from([0, 1, 2]))
def test_halving_a_dimension_never_gains(
    name: str, m: int, n: int, k: int, axis: int
) -> None:
    """Twice the tensor-parallel size at one width: efficiency is lost, not won."""
    rates = load_rates(name)
    half = [m, n, k]
    whole = list(half)
    whole[axis] *= 2
    assert 2 * product_s(tuple(half), rates) >= product_s(tuple(whole), rates) * (
        1 - 1e-12
    )


@given(devices, few, few, dimension, dimension, dimension)
def test_more_groups_never_cost_less(
    name: str, groups: int, extra: int, m: int, n: int, k: int
) -> None:
    rates = load_rates(name)

    def price(count: int) -> float:
        return float(
            grouped_matmul_s(
                count, m, n, k, device=DEVICE, rates=rates, number=Format.BF16
            )
        )

    assert price(groups) <= price(groups + extra) * (1 + 1e-12)
    assert price(1) == product_s((m, n, k), rates)


@given(
    devices,
    st.sampled_from(KERNELS),
    st.sampled_from(DIRECTIONS),
    st.tuples(few, dimension, dimension, st.integers(8, 256)),
    st.tuples(*[more] * 4),
    st.booleans(),
)
def test_more_attention_never_costs_less(
    name: str,
    kernel: str,
    direction: str,
    shape: tuple[int, ...],
    extra: tuple[int, ...],
    causal: bool,
) -> None:
    rates = load_rates(name)

    def price(heads: int, queries: int, keys: int, head_dim: int) -> float:
        return float(
            attention_s(
                kernel,
                direction,
                AttentionShape(
                    batch_heads=heads,
                    seq_q=queries,
                    seq_kv=keys,
                    head_dim=head_dim,
                    causal=causal,
                ),
                device=DEVICE,
                rates=rates,
                number=Format.BF16,
            )
        )

    larger = [a + b for a, b in zip(shape, extra, strict=True)]
    assert price(*shape) <= price(*larger) * (1 + 1e-12)


@given(devices, size, size)
def test_more_traffic_never_costs_less(name: str, a: float, b: float) -> None:
    little, much = sorted((a, b))
    rates = load_rates(name)
    prices = traffic_s([little, much], device=DEVICE, rates=rates)
    assert prices[0] <= prices[1]
    assert prices[1] >= much / DEVICE.memory_bytes_per_s


@st.composite
def fabrics(draw: st.DrawFn, *, switched: bool = False) -> LinkRates:
    rates = link_file().rates
    names = [name for name in LINKS if not (switched and rates[name].direct)]
    return LinkRates(
        inner=rates[draw(st.sampled_from(names))],
        outer=rates[draw(st.sampled_from(LINKS))],
        inner_bytes_per_s=draw(st.floats(1 * GB, 1000 * GB)),
        outer_bytes_per_s=draw(st.floats(0.1 * GB, 200 * GB)),
        domain=draw(st.sampled_from([4, 8, 16, 72])),
    )


kinds = st.sampled_from(list(Collective))
members = st.integers(1, 72)
nodes = st.integers(1, 512)


@given(fabrics(), kinds, size, size, members, nodes)
def test_more_bytes_never_cost_less(
    rates: LinkRates, kind: str, a: float, b: float, r: int, q: int
) -> None:
    r = min(r, rates.domain)
    prices = collective_s(
        kind, sorted((a, b)), ranks=r * q, ranks_per_node=r, rates=rates
    )
    assert prices[0] <= prices[1]


@given(fabrics(), kinds, size, members, nodes, nodes)
def test_more_nodes_never_cost_less(
    rates: LinkRates, kind: str, size_bytes: float, r: int, p: int, q: int
) -> None:
    r = min(r, rates.domain)
    ranks = [r * min(p, q), r * max(p, q)]
    prices = collective_s(kind, size_bytes, ranks=ranks, ranks_per_node=r, rates=rates)
    assert prices[0] <= prices[1] * (1 + 1e-12)


@given(fabrics(switched=True), kinds, size, members, members)
def test_more_ranks_behind_a_switch_never_cost_less(
    rates: LinkRates, kind: str, size_bytes: float, a: int, b: int
) -> None:
    ranks = [min(k, rates.domain) for k in sorted((a, b))]
    prices = collective_s(
        kind, size_bytes, ranks=ranks, ranks_per_node=ranks, rates=rates
    )
    assert prices[0] <= prices[1] * (1 + 1e-12)


@given(fabrics(), size, members, nodes, st.booleans())
def test_all_reduce_is_reduce_scatter_and_all_gather(
    rates: LinkRates, size_bytes: float, r: int, q: int, alone: bool
) -> None:
    r = min(r, rates.domain)

    def price(kind: Collective) -> float:
        return float(
            collective_s(
                kind,
                size_bytes,
                ranks=r * q,
                ranks_per_node=r,
                rates=rates,
                alone=alone,
            )
        )

    parts = price(Collective.REDUCE_SCATTER) + price(Collective.ALL_GATHER)
    whole = price(Collective.ALL_REDUCE)
    if q == 1:
        assert whole == pytest.approx(parts)
    assert whole <= parts * (1 + 1e-12), "a tree has fewer hops than the rings"


@given(fabrics(), kinds, size, members, nodes)
def test_training_is_never_faster_than_alone(
    rates: LinkRates, kind: str, size_bytes: float, r: int, q: int
) -> None:
    r = min(r, rates.domain)
    shape = {"ranks": r * q, "ranks_per_node": r, "rates": rates}
    busy = collective_s(kind, size_bytes, **shape)  # type: ignore[arg-type]
    alone = collective_s(kind, size_bytes, alone=True, **shape)  # type: ignore[arg-type]
    assert busy >= alone


@given(fabrics(), size, size, st.booleans())
def test_sends_grow_and_beat_no_link(
    rates: LinkRates, a: float, b: float, near: bool
) -> None:
    prices = send_s(sorted((a, b)), same_node=near, rates=rates)
    assert prices[0] <= prices[1]
    line = rates.inner_bytes_per_s if near else rates.outer_bytes_per_s
    assert prices[1] >= max(a, b) / line


@pytest.mark.parametrize("name", LINKS)
def test_a_thousand_ranks_do_not_pay_a_thousand_hops(name: str) -> None:
    link = link_file().rates[name]
    rates = LinkRates(
        inner=link,
        outer=link,
        inner_bytes_per_s=300 * GB,
        outer_bytes_per_s=25 * GB,
        domain=8,
    )
    tree = collective_s("all_reduce", 1, ranks=1024, ranks_per_node=8, rates=rates)
    assert float(tree) < 2046 * (link.launch_s + link.hop_s) / 10
