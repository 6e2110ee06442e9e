"""Fitted rates against the measurements they stand for, and against others.

The tables live in the folder named by MESHWRIGHT_DATA; without it these tests skip.
Korthikanti's layer times are short enough to stand here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.fit import calibration as fits
from benchmarks.fit import published, published_aceso
from costmodel.machine.collectives import LinkRates, collective_s, link_file, send_s
from costmodel.machine.kernels import (
    AttentionShape,
    attention_s,
    matmul_s,
    traffic_s,
)
from costmodel.machine.rates import rates_of
from profiles.hardware.catalog import device
from profiles.hardware.clusters import Device
from profiles.hardware.precisions import Format

GB, MB, MS = 1e9, 2**20, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest median and 90th percentile of the relative error."""

    median: float
    p90: float


@pytest.fixture(scope="module")
def folder() -> Path:
    named = os.environ.get("MESHWRIGHT_DATA")
    if not named:
        pytest.skip("MESHWRIGHT_DATA does not name the folder of measurements")
    return Path(named)


V100 = device("v100-sxm-32gb")
A100_PCIE = device("a100-pcie-80gb")
A100_SXM = device("a100-sxm-80gb")
H800 = device("h800-sxm-80gb")
B200 = device("b200-sxm-180gb")


def require(errors: NDArray[np.float64], limits: Limits) -> None:
    assert np.median(errors) <= limits.median
    assert np.percentile(errors, 90) <= limits.p90


PRODUCTS = [
    (A100_PCIE, "A100-PCIe-80GB", "matmul", Limits(median=0.04, p90=0.11)),
    # A sixth of this table was taken at a higher clock: neighbours of equal shape
    # differ by 30 % (8192 x 4096 x 4096 at 0.46 and 0.56 of peak), so no function of
    # the shape can have a smaller 90th percentile.
    (B200, "B200-SXM-180GB", "matmul", Limits(median=0.08, p90=0.32)),
    (H800, "H800-SXM-80GB", "gemm", Limits(median=0.08, p90=0.20)),
]


@pytest.mark.parametrize(("on", "name", "op", "limits"), PRODUCTS, ids=lambda v: str(v))
def test_products(folder: Path, on: Device, name: str, op: str, limits: Limits) -> None:
    table = published.products(folder, name, op)
    prices = fits.products_s(table, on, rates_of(on))
    require(np.abs(prices / table.seconds - 1), limits)


def test_products_of_the_v100(folder: Path) -> None:
    table = published_aceso.products(folder)
    prices = fits.products_s(table, V100, rates_of(V100))
    require(np.abs(prices / table.seconds - 1), Limits(median=0.08, p90=0.15))


@pytest.mark.parametrize(
    ("on", "name", "limits"),
    [
        (A100_PCIE, "A100-PCIe-80GB", Limits(median=0.03, p90=0.08)),
        (B200, "B200-SXM-180GB", Limits(median=0.10, p90=0.24)),
    ],
    ids=lambda v: str(v),
)
def test_grouped_products(folder: Path, on: Device, name: str, limits: Limits) -> None:
    table = published.products(folder, name, "group_matmul")
    prices = fits.grouped_s(table, on, rates_of(on))
    require(np.abs(prices / table.seconds - 1), limits)


@pytest.mark.parametrize(
    ("on", "name", "limits"),
    [
        (A100_PCIE, "A100-PCIe-80GB", Limits(median=0.04, p90=0.07)),
        (B200, "B200-SXM-180GB", Limits(median=0.08, p90=0.30)),
    ],
    ids=lambda v: str(v),
)
def test_flash_attention(folder: Path, on: Device, name: str, limits: Limits) -> None:
    forward = published.attention(folder, name, "forward")
    backward = published.attention(folder, name, "backward")
    rates = rates_of(on)
    prices = fits.flash_s(rates.attention["flash-2"], forward, backward, on, rates)
    measured = np.concatenate([forward.seconds, backward.seconds])
    require(np.abs(prices / measured - 1), limits)


def test_memory_traffic_of_the_v100(folder: Path) -> None:
    table = published_aceso.traffic(folder)
    prices = traffic_s(table.size_bytes, device=V100, rates=rates_of(V100))
    require(np.abs(prices / table.seconds - 1), Limits(median=0.15, p90=0.25))


# Not fitted: an A100 of unstated kind (EleutherAI's cookbook, sample_results). Its
# clock is unknown; the products of a transformer are within 6 % all the same.
COOKBOOK = (
    "qkv_transform",
    "attention_linear_projection",
    "mlp_h_to_4h",
    "mlp_4h_to_h",
    "logit_block",
)


@pytest.mark.parametrize("op", COOKBOOK)
def test_products_of_an_a100_nothing_was_fitted_to(folder: Path, op: str) -> None:
    table = published.products(folder, "A100 (inferred)", op)
    prices = fits.products_s(table, A100_SXM, rates_of(A100_SXM))
    assert prices == pytest.approx(table.seconds, rel=0.06)


def links(inner: str, gb_per_s: float, outer: str = "infiniband") -> LinkRates:
    rates = link_file().rates
    return LinkRates(
        inner=rates[inner],
        outer=rates[outer],
        inner_bytes_per_s=gb_per_s * GB,
        outer_bytes_per_s=50 * GB,
        domain=8,
    )


def test_all_reduce_within_an_a100_node(folder: Path) -> None:
    table = published.collectives(folder, "A100-SXM-80GB", source="vTrain")
    assert len(table) == 7 * 1024
    thin = published.thinned(table)
    prices = fits.all_reduces_s(thin, links("nvlink3", 300))
    require(np.abs(prices / thin.seconds - 1), Limits(median=0.05, p90=0.13))
    large = published.thinned(table, per_group=10**6)
    prices = fits.all_reduces_s(large, links("nvlink3", 300))
    require(np.abs(prices / large.seconds - 1), Limits(median=0.05, p90=0.13))


def test_all_reduce_within_a_v100_node(folder: Path) -> None:
    table = published.collectives(folder, "V100-SXM", source="vTrain")
    eight = published.Transfers(
        **{
            name: getattr(table, name)[table.ranks == 8]
            for name in ("ranks", "nodes", "size_bytes", "seconds")
        }
    )
    prices = fits.all_reduces_s(eight, links("nvlink2", 150))
    require(np.abs(prices / eight.seconds - 1), Limits(median=0.12, p90=0.2))


def test_all_reduce_between_h100_nodes(folder: Path) -> None:
    """Two nodes were not fitted: a tree needs fewer crossings there than a ring."""
    table = published.collectives(
        folder, "H100-SXM-80GB", source="nccl issue", note="8x400Gb/s IB"
    )
    prices = fits.all_reduces_s(table, links("nvlink4", 450))
    require(np.abs(prices / table.seconds - 1), Limits(median=0.16, p90=0.4))


def test_sends_between_v100s(folder: Path) -> None:
    table = published.collectives(
        folder, "V100-SXM-32GB", source="p2p_intra", kind="p2p send/recv"
    )
    rates = links("nvlink2", 150)
    prices = send_s(table.size_bytes, same_node=True, rates=rates, alone=True)
    require(np.abs(prices / table.seconds - 1), Limits(median=0.06, p90=0.2))


# Korthikanti et al. 2022, Table 4: one layer of the 22B model on 8 A100s.
TOKENS, HIDDEN, TP = 4 * 2048, 6144, 8
WIDTHS = [
    (3 * HIDDEN, HIDDEN),
    (HIDDEN, HIDDEN),
    (4 * HIDDEN, HIDDEN),
    (HIDDEN, 4 * HIDDEN),
]
COLUMN_PARALLEL = (True, False, True, False)


def product_s(m: int, n: int, k: int) -> float:
    rates = rates_of(A100_SXM)
    return float(matmul_s(m, n, k, device=A100_SXM, rates=rates, number=Format.FP16))


def layer_s() -> tuple[float, float, float]:
    """Forward, backward and attention core of the layer, nothing of it fitted."""
    rates = rates_of(A100_SXM)
    local = [
        (n // TP, k) if column else (n, k // TP)
        for (n, k), column in zip(WIDTHS, COLUMN_PARALLEL, strict=True)
    ]
    forward = sum(product_s(TOKENS, n, k) for n, k in local)
    backward = sum(product_s(TOKENS, k, n) + product_s(n, k, TOKENS) for n, k in local)
    core = [
        float(
            attention_s(
                "fused-softmax",
                direction,
                AttentionShape(
                    batch_heads=4 * 64 // TP,
                    seq_q=2048,
                    seq_kv=2048,
                    head_dim=96,
                    causal=True,
                ),
                device=A100_SXM,
                rates=rates,
                number=Format.FP16,
            )
        )
        for direction in ("forward", "backward")
    ]
    reduce_s = float(
        collective_s(
            "all_reduce",
            2 * TOKENS * HIDDEN,
            ranks=TP,
            ranks_per_node=TP,
            rates=links("nvlink3", 300),
            alone=True,
        )
    )
    # Two layer norms (4 bytes an element forward, 6 backward) and two dropouts with
    # bias and residual (7 and 5) over all tokens; GELU (4 and 6) over a share of 4h.
    wide, narrow = TOKENS * 4 * HIDDEN / TP, TOKENS * HIDDEN
    plain = [
        float(traffic_s(size, device=A100_SXM, rates=rates, kernels=6))
        for size in (narrow * (8 + 14) + wide * 4, narrow * (12 + 10) + wide * 6)
    ]
    return (
        forward + core[0] + 2 * reduce_s + plain[0],
        backward + core[1] + 2 * reduce_s + plain[1],
        core[0],
    )


def test_a_layer_of_korthikanti_table_4() -> None:
    forward_s, backward_s, core_s = layer_s()
    assert forward_s == pytest.approx(7.7 * MS, rel=0.06)
    assert backward_s == pytest.approx(11.9 * MS, rel=0.08)
    # Selective recompute repeats the attention core: 13.2 ms instead of 11.9.
    assert core_s == pytest.approx(1.3 * MS, rel=0.1)
