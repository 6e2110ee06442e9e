"""Refit every rate from the folder named by MESHWRIGHT_DATA and print the table.

    MESHWRIGHT_DATA=<folder> python benchmarks/calibrate.py [--write]

Without --write nothing is changed. Each line shows a parameter, its value, its
standard error where it was fitted, and the residual of the fit (median and 90th
percentile of the relative error, in brackets on points the fit did not see).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from costmodel import calibration as fits
from costmodel import published
from costmodel.calibration import Fitted
from costmodel.collectives import LinkFile, LinkRate, LinkRates
from costmodel.published import Transfers
from costmodel.rates import RATES, AttentionRate, MatmulRate, Rates, Residual, TrafficRate
from profiles.catalog import device as device_of
from profiles.precision import Format
from profiles.units import GB, TFLOPS

PUBLISHED = Residual(median=0.1, p90=0.3, points=0)
BORROWED = Residual(median=0.15, p90=0.4, points=0)
GUESSED = Residual(median=0.3, p90=0.6, points=0)

SIMUMAX = "SimuMax's table of measured shapes (hw_gemm.csv)"
MAMF = "maximum achievable matmul FLOP/s (ml-engineering, hw.csv)"
ACESO = "Aceso's V100-32GB operator profiles (layer_times.csv)"
NCCL_TRAINING = 1 / 1.3
NCCL_TRAINING_SOURCE = "NCCL takes some 30 % longer inside training than alone (vTrain)"
FABRIC_TRAINING = 0.55 / 0.95
FABRIC_TRAINING_SOURCE = (
    "real fabrics reach 50-60 % of line rate inside training (fitted, public runs)"
)

# Between two kernels of one stream a device idles 2 to 5 us; the A100's products fit 2.
OVERHEAD_S = 4e-6
# The host takes about 10 us to issue a kernel: Aceso's shortest module forwards, of
# some three kernels each, take 34 to 39 us however small their tensors are.
LAUNCH_S = 1.2e-5
LAUNCH_SOURCE = f"{ACESO}: shortest forwards, 34-39 us for about three kernels"


def main(arguments: list[str]) -> int:
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        print("set MESHWRIGHT_DATA to the folder of measurements", file=sys.stderr)
        return 2
    rates = all_rates(Path(folder))
    links = all_links(Path(folder))
    if "--write" in arguments:
        for name, found in rates.items():
            _write(RATES / f"{name}.json", found)
        _write(RATES / "links.json", links)
    return 0


def all_rates(folder: Path) -> dict[str, Rates]:
    """Rates by name of file, fitted devices before those that borrow from them."""
    volta = volta_rates(folder)
    ampere = ampere_rates(folder, volta)
    hopper = hopper_rates(folder, ampere)
    blackwell = blackwell_rates(folder, ampere)
    found = {
        "v100-sxm-32gb": volta,
        "a100-pcie-80gb": ampere,
        "h800-sxm-80gb": hopper,
        "b200-sxm-180gb": blackwell,
    }
    for name, kin, data_name in (
        ("a100-sxm-80gb", ampere, "A100-SXM-80GB"),
        ("h100-sxm-80gb", hopper, "H100-SXM-80GB"),
        ("h200-sxm-141gb", hopper, "H200-SXM-141GB"),
        ("gh200-96gb", hopper, "GH200-96GB"),
        ("gb200-186gb", blackwell, "GB200-186GB"),
        ("b300-sxm-288gb", blackwell, "B300-SXM-288GB"),
        ("mi300x-192gb", ampere, "MI300X-192GB"),
        ("mi325x-256gb", ampere, "MI325X-256GB"),
        ("mi355x-288gb", ampere, "MI355X-288GB"),
    ):
        found[name] = _scaled(folder, name, data_name, kin)
    found["generic"] = generic_rates(ampere)
    return found


def volta_rates(folder: Path) -> Rates:
    """V100: products, traffic and written-out attention from Aceso's profiles."""
    device = device_of("v100-sxm-32gb")
    rates = replace(_START, device="v100-sxm-32gb")
    traffic = fits.fit_traffic(published.aceso_traffic(folder), device, OVERHEAD_S)
    _show("v100 traffic", traffic)
    rates = _with_traffic(rates, traffic.values["fraction"], traffic.residual, ACESO)
    table = published.aceso_products(folder)
    shape = fits.fit_matmul(table, device, rates, fits.MATMUL[:-1])
    rates = _with_products(rates, shape, table, ACESO)
    per_score = {}
    for direction in ("forward", "backward"):
        fit = fits.fit_scores(published.aceso_scores(folder, direction), device, rates)
        _show(f"v100 fused-softmax {direction}", fit)
        per_score[direction] = fit
    written = AttentionRate(
        forward_bytes_per_score=per_score["forward"].values["bytes_per_score"],
        backward_bytes_per_score=per_score["backward"].values["bytes_per_score"],
        source=f"{ACESO}: fused softmax and attention dropout",
        residual=per_score["forward"].residual,
    )
    return replace(
        rates,
        attention={
            "flash-1": _FLASH_1,
            "fused-softmax": written,
            "materialised": _eager(written),
        },
    )


def ampere_rates(folder: Path, volta: Rates) -> Rates:
    """A100-PCIe: SimuMax's products and attention; scores as on the V100."""
    device = device_of("a100-pcie-80gb")
    seen_bytes = published.single_figure(
        folder, "A100-PCIe-80GB", "SimuMax memory bandwidth default"
    )
    fraction = seen_bytes * GB / device.memory_bytes_per_s
    rates = replace(_START, device="a100-pcie-80gb")
    rates = _with_traffic(rates, fraction, PUBLISHED, "SimuMax: 1456 GB/s (hw.csv)")
    table = published.products(folder, "A100-PCIe-80GB")
    rates = _with_products(rates, fits.fit_matmul(table, device, rates), table, SIMUMAX)
    groups = published.products(folder, "A100-PCIe-80GB", "group_matmul")
    rates = _with_groups(rates, fits.fit_groups(groups, device, rates))
    flash = fits.fit_attention(
        published.attention(folder, "A100-PCIe-80GB", "forward"),
        published.attention(folder, "A100-PCIe-80GB", "backward"),
        device,
        rates,
    )
    _show("a100 flash-2", flash)
    return replace(
        rates,
        attention={
            **_written(volta),
            "flash-1": _FLASH_1,
            "flash-2": _flash(flash, SIMUMAX),
        },
    )


def hopper_rates(folder: Path, ampere: Rates) -> Rates:
    """H800: DeepGEMM's fp8 products; bf16 by its best shape, attention by papers."""
    device = device_of("h800-sxm-80gb")
    rates = replace(ampere, device="h800-sxm-80gb")
    table = published.products(folder, "H800-SXM-80GB", "gemm")
    fit = fits.fit_matmul(table, device, rates)
    source = "DeepGEMM's fp8 products on an H800; bf16 by best shape"
    rates = _with_products(rates, fit, table, source)
    share = _proportion(folder, ampere) * _mamf_share(
        folder, "h800-sxm-80gb", "H100-SXM-80GB"
    )
    sustained = {"bf16": share, "fp8": fit.values["sustained"]}
    rates = replace(
        rates, matmul=replace(rates.matmul, default=share, sustained=sustained)
    )
    older = rates.attention["flash-2"]
    flash_2 = replace(
        older,
        forward=0.35,
        backward=0.35 * older.backward / older.forward,
        source="Shah et al. 2024, abstract: 35 % on H100; backward in A100's proportion",
        residual=PUBLISHED,
    )
    flash_3 = replace(
        flash_2,
        forward=flash_2.forward * 1.75,
        backward=flash_2.backward * 1.75,
        source="Shah et al. 2024, abstract: 1.5 to 2 times flash-2, its middle",
    )
    kernels = {**rates.attention, "flash-2": flash_2, "flash-3": flash_3}
    return replace(rates, attention=kernels)


def blackwell_rates(folder: Path, ampere: Rates) -> Rates:
    """B200: SimuMax's products and attention."""
    device = device_of("b200-sxm-180gb")
    seen_bytes = published.single_figure(
        folder, "B200-SXM-180GB", "SimuMax memory bandwidth default"
    )
    fraction = seen_bytes * GB / device.memory_bytes_per_s
    rates = replace(ampere, device="b200-sxm-180gb")
    rates = replace(rates, matmul=_START.matmul)
    rates = _with_traffic(rates, fraction, PUBLISHED, "SimuMax: 5328 GB/s (hw.csv)")
    table = published.products(folder, "B200-SXM-180GB")
    source = f"{SIMUMAX}; bimodal: a sixth was taken at a higher clock"
    rates = _with_products(rates, fits.fit_matmul(table, device, rates), table, source)
    groups = published.products(folder, "B200-SXM-180GB", "group_matmul")
    rates = _with_groups(rates, fits.fit_groups(groups, device, rates))
    flash = fits.fit_attention(
        published.attention(folder, "B200-SXM-180GB", "forward"),
        published.attention(folder, "B200-SXM-180GB", "backward"),
        device,
        rates,
    )
    _show("b200 flash-3", flash)
    rate = _flash(flash, f"{SIMUMAX}; the library's fused kernel, whatever its name")
    ratio = _mamf(folder, "B200-SXM-180GB", "fp8") / _mamf(folder, "B200-SXM-180GB")
    sustained = rates.matmul.default
    shares = {
        **rates.matmul.sustained,
        "fp8": sustained * ratio / 2,
        "mxfp8": sustained * ratio / 2,
        "nvfp4": sustained * 3 / 4,  # 3 times bf16 on products; its peak is 4 times
    }
    return replace(
        rates,
        matmul=replace(rates.matmul, sustained=shares),
        attention={**rates.attention, "flash-2": rate, "flash-3": rate},
    )


def generic_rates(ampere: Rates) -> Rates:
    """For a device of no known kin: the A100's shape, at the lower end of fractions."""
    source = "A100-PCIe's shape; 0.7 of peak, between B200 and A100"
    matmul = replace(
        ampere.matmul, sustained={}, default=0.7, source=source, residual=GUESSED
    )
    traffic = replace(ampere.traffic, source="as A100-PCIe", residual=GUESSED)
    kernels = {
        name: replace(rate, residual=GUESSED) for name, rate in ampere.attention.items()
    }
    return replace(
        ampere, device="generic", matmul=matmul, traffic=traffic, attention=kernels
    )


def all_links(folder: Path) -> LinkFile:
    """Link rates by name, and which kind of link has which."""
    base = LinkRates(
        inner=_LINK,
        outer=_LINK,
        inner_bytes_per_s=300 * GB,
        outer_bytes_per_s=50 * GB,
        domain=8,
    )
    nvlink3 = _nvlink3(folder, base)
    measured = replace(base, inner=nvlink3)
    found = {
        "nvlink2": _nvlink2(folder, measured),
        "nvlink3": nvlink3,
        "nvlink4": replace(
            nvlink3,
            name="nvlink4",
            fraction=367.6 / 450,
            source="H200: ring all-reduce 367.6 GB/s of 450; sizes as nvlink3",
            residual=PUBLISHED,
        ),
        "nvlink5": _nvlink5(folder, measured),
        "xgmi": replace(
            nvlink3,
            name="xgmi",
            fraction=312.9 / 448,
            direct=float(np.log(47.7 / 312.9) / np.log(1 / 7)),
            send_fraction=47.7 / 448,
            exchange_fraction=312.9 / 448,
            source="MI300X: all-reduce 47.7 GB/s over 2, 312.9 over 8, of 448",
            residual=PUBLISHED,
        ),
        "pcie": replace(
            nvlink3,
            name="pcie",
            fraction=0.38,
            send_fraction=0.38,
            exchange_fraction=0.3,
            source=(
                "between 0.21 (8 A100-PCIe, SimuMax) and 0.76 (NVIDIA's slide): their "
                "geometric mean with 0.35 (4 A100-PCIe)"
            ),
            residual=Residual(median=0.5, p90=1.0, points=0),
        ),
    }
    found |= _fabrics(folder, measured)
    return LinkFile(rates=found, kinds=_KINDS, default="ethernet")


def _nvlink3(folder: Path, base: LinkRates) -> LinkRate:
    table = published.collectives(folder, "A100-SXM-80GB", source="vTrain")
    table = published.thinned(table)
    four = (fits.FRACTION, fits.HALF, fits.LAUNCH, fits.HOP)
    fit = fits.fit_inner(table, base, four)
    _show("nvlink3", fit)
    link = replace(
        _LINK,
        name="nvlink3",
        send_fraction=163.671 / 300,
        exchange_fraction=0.78,
        training=NCCL_TRAINING,
        training_source=NCCL_TRAINING_SOURCE,
    )
    source = (
        "vTrain's A100 all-reduce tables, 2 to 8 ranks, 1 MB to 1 GB; sends: Galvatron "
        "163.7 GB/s; all-to-all: SimAI's ratio of 8 ranks"
    )
    return fits.link_with(link, fit, source)


def _nvlink2(folder: Path, base: LinkRates) -> LinkRate:
    base = replace(base, inner_bytes_per_s=150 * GB)
    table = published.collectives(folder, "V100-SXM", source="vTrain")
    table = published.thinned(table, per_group=11)
    pairs = published.collectives(
        folder, "V100-SXM-32GB", source="p2p_intra", kind="p2p send/recv"
    )
    # Two ranks send as many bytes to all-reduce a tensor as to hand it over.
    both = _joined(_only_ranks(table, (2, 4, 8)), pairs)
    five = (fits.FRACTION, fits.HALF, fits.LAUNCH, fits.HOP, fits.DIRECT)
    fit = fits.fit_inner(both, base, five)
    _show("nvlink2", fit)
    source = (
        "vTrain's V100 all-reduce tables, 2, 4 and 8 ranks (one pair joined by a "
        "single link), and Aceso's sends (a pair joined by two)"
    )
    link = fits.link_with(replace(base.inner, name="nvlink2"), fit, source)
    sends = fits.fit_send(pairs, replace(base, inner=link), same_node=True)
    _show("nvlink2 send", sends)
    return replace(link, **sends.values)


def _nvlink5(folder: Path, base: LinkRates) -> LinkRate:
    ring = 682.2 / 900
    link = replace(base.inner, name="nvlink5", fraction=ring)
    base = replace(base, inner=link, inner_bytes_per_s=900 * GB)
    table = published.collectives(
        folder, "B200-SXM-180GB", source="ml-engineering", note="AWS P6-B200"
    )
    inside = _where(table, table.nodes == 1)
    fit = fits.fit_inner(inside, base, (fits.HALF, fits.LAUNCH))
    _show("nvlink5", fit)
    source = "B200: ring all-reduce 682.2 GB/s of 900; sizes from 8 GPUs of AWS P6-B200"
    return fits.link_with(link, fit, source)


def _fabrics(folder: Path, base: LinkRates) -> dict[str, LinkRate]:
    base = replace(base, inner_bytes_per_s=450 * GB)
    start = replace(
        _LINK,
        name="infiniband",
        fraction=0.95,
        send_fraction=0.64,
        exchange_fraction=0.9,
        training=FABRIC_TRAINING,
        training_source=FABRIC_TRAINING_SOURCE,
    )
    base = replace(base, outer=start)
    table = published.collectives(
        folder, "H100-SXM-80GB", source="nccl issue", note="8x400Gb/s IB"
    )
    # The first of 32 ranks was a warm-up: in place it took a third of the time.
    table = _where(table, (table.nodes > 2) & (table.size_bytes > 2**20))
    fit = fits.fit_outer(table, base, (fits.HALF, fits.HOP))
    _show("infiniband", fit)
    source = (
        "fraction: DGX A100 192 of 200 GB/s, DGX H100 380 of 400; sizes: H100, 4 and 8 "
        "nodes; sends: Galvatron 8 of 12.5 GB/s; all-to-all: SimAI's ratios"
    )
    infiniband = fits.link_with(replace(start, launch_s=5e-6), fit, source)
    efa_table = published.collectives(
        folder, "B200-SXM-180GB", source="ml-engineering", note="EFA"
    )
    efa_base = replace(base, inner_bytes_per_s=900 * GB, outer=infiniband)
    efa_fit = fits.fit_outer(efa_table, efa_base, (fits.HALF, fits.LAUNCH))
    _show("efa", efa_fit)
    efa_source = "B200, 4 nodes of AWS P6-B200 (8 x 400 Gb/s EFA)"
    return {
        "infiniband": infiniband,
        "efa": fits.link_with(replace(infiniband, name="efa"), efa_fit, efa_source),
        "ethernet": replace(
            infiniband,
            name="ethernet",
            fraction=0.9,
            launch_s=5e-5,
            source="as infiniband, with the latency of TCP (assumed)",
            residual=GUESSED,
        ),
        "omni-path": replace(
            infiniband,
            name="omni-path",
            fraction=float(np.sqrt(46 * 110)) / 400,
            send_fraction=float(np.sqrt(46 * 110)) / 400,
            exchange_fraction=float(np.sqrt(46 * 110)) / 400,
            training=1.0,
            source="Jean Zay: 23 to 55 Gb/s of all-reduced data on 4 x 100 Gb/s (hw.csv)",
            training_source="measured between the jobs of a busy machine",
            residual=GUESSED,
        ),
    }


_KINDS = {
    "nvlink/volta": "nvlink2",
    "nvlink/ampere": "nvlink3",
    "nvlink/hopper": "nvlink4",
    "nvlink/blackwell": "nvlink5",
    "nvlink": "nvlink4",
    "nvswitch/volta": "nvlink3",
    "nvswitch/ampere": "nvlink3",
    "nvswitch/hopper": "nvlink4",
    "nvswitch/blackwell": "nvlink5",
    "nvswitch": "nvlink4",
    "xgmi": "xgmi",
    "pcie": "pcie",
    "infiniband": "infiniband",
    "roce": "infiniband",
    "slingshot": "infiniband",
    "efa": "efa",
    "omni-path": "omni-path",
    "ethernet": "ethernet",
}

_LINK = LinkRate(
    name="start",
    fraction=0.8,
    send_fraction=0.6,
    exchange_fraction=0.7,
    half_bytes=2e6,
    launch_s=1.5e-5,
    hop_s=3e-6,
    training=1.0,
    source="start of the fit",
    training_source="",
    residual=GUESSED,
)
_START = Rates(
    device="start",
    kin=None,
    matmul=MatmulRate(
        sustained={},
        default=0.75,
        edge=50.0,
        fill_k=100.0,
        wave=0.5,
        bandwidth=0.8,
        overhead_s=OVERHEAD_S,
        group_s=0.0,
        source="start of the fit",
        residual=GUESSED,
    ),
    traffic=TrafficRate(
        fraction=0.8, overhead_s=OVERHEAD_S, source="start of the fit", residual=GUESSED
    ),
    attention={
        "flash-2": AttentionRate(
            forward=0.5, backward=0.4, source="start of the fit", residual=GUESSED
        )
    },
    launch_s=LAUNCH_S,
    launch_source=LAUNCH_SOURCE,
)
_FLASH_1 = AttentionRate(
    forward=0.40,
    backward=0.30,
    half_head=16.0,
    forward_tail=0.8,
    backward_tail=0.8,
    overhead_s=5e-6,
    source="Dao 2023, section 1: 30-50 % forward, 25-35 % backward on A100",
    residual=PUBLISHED,
)


def _eager(fused: AttentionRate) -> AttentionRate:
    """Eager attention: the kernels that the fused softmax replaces, counted.

    Forward: masked fill reads and writes a 16-bit score and reads a byte of mask (5),
    softmax (4), dropout with its mask (5). Backward: dropout (5), softmax (6), masked
    fill (5). The fused kernel's measured bytes stand for softmax and dropout.
    """
    counted_forward, counted_backward = 14.0 / 9.0, 16.0 / 11.0
    return replace(
        fused,
        forward_bytes_per_score=fused.forward_bytes_per_score * counted_forward,
        backward_bytes_per_score=fused.backward_bytes_per_score * counted_backward,
        source="fused-softmax and, counted, the mask's own kernels",
        residual=BORROWED,
    )


def _written(volta: Rates) -> dict[str, AttentionRate]:
    """The kernels that write scores: bytes are bytes on another device too."""
    names = ("fused-softmax", "materialised")
    return {name: replace(volta.attention[name], residual=BORROWED) for name in names}


def _with_traffic(
    rates: Rates, fraction: float, residual: Residual, source: str
) -> Rates:
    traffic = TrafficRate(
        fraction=fraction, overhead_s=OVERHEAD_S, source=source, residual=residual
    )
    return replace(
        rates, traffic=traffic, matmul=replace(rates.matmul, bandwidth=fraction)
    )


def _with_products(
    rates: Rates, fit: Fitted, table: published.Products, source: str
) -> Rates:
    _show(f"{rates.device} products", fit)
    rates = fits.with_matmul(rates, fit.values, table.number)
    matmul = replace(
        rates.matmul,
        default=fit.values["sustained"],
        source=source,
        residual=fit.residual,
    )
    return replace(rates, matmul=matmul)


def _with_groups(rates: Rates, fit: Fitted) -> Rates:
    _show(f"{rates.device} groups", fit)
    return replace(rates, matmul=replace(rates.matmul, **fit.values))


def _flash(fit: Fitted, source: str) -> AttentionRate:
    start = replace(_START.attention["flash-2"], overhead_s=5e-6)
    return replace(start, **fit.values, source=source, residual=fit.residual)


def _scaled(folder: Path, name: str, data_name: str, kin: Rates) -> Rates:
    """The kin's shape at this device's own best shape, in the kin's proportion."""
    rates = replace(kin, device=name, kin=kin.device)
    share = _proportion(folder, kin) * _mamf_share(folder, name, data_name)
    scale = share / kin.matmul.default
    matmul = replace(
        kin.matmul,
        sustained={key: value * scale for key, value in kin.matmul.sustained.items()},
        default=share,
        source=f"{kin.device}'s shape, scaled by {MAMF}",
        residual=BORROWED,
    )
    return replace(rates, matmul=matmul)


# Whose best shape is known beside a fit of many: the two differ by this proportion.
_REFERENCE = {
    "a100-pcie-80gb": "A100-PCIe-80GB",
    "h800-sxm-80gb": "H100-SXM-80GB",
    "b200-sxm-180gb": "B200-SXM-180GB",
}


def _proportion(folder: Path, rates: Rates) -> float:
    best = _mamf_share(folder, rates.device, _REFERENCE[rates.device])
    return rates.matmul.default / best


def _mamf_share(folder: Path, name: str, data_name: str) -> float:
    peak = device_of(name).peak_flops_per_s(Format.BF16)
    return _mamf(folder, data_name) * TFLOPS / peak


def _mamf(folder: Path, data_name: str, number: str = "bf16") -> float:
    return published.single_figure(folder, data_name, f"MAMF {number} GEMM (best shape)")


def _joined(first: Transfers, second: Transfers) -> Transfers:
    fields = ("ranks", "nodes", "size_bytes", "seconds")
    return Transfers(
        **{
            name: np.concatenate([getattr(first, name), getattr(second, name)])
            for name in fields
        }
    )


def _only_ranks(table: Transfers, ranks: tuple[int, ...]) -> Transfers:
    return _where(table, np.isin(table.ranks, ranks))


def _where(table: Transfers, chosen: np.ndarray) -> Transfers:
    return Transfers(
        ranks=table.ranks[chosen],
        nodes=table.nodes[chosen],
        size_bytes=table.size_bytes[chosen],
        seconds=table.seconds[chosen],
    )


def _show(what: str, fit: Fitted) -> None:
    residual = fit.residual
    unseen = (
        f" [{residual.held_out_median:.1%}, {residual.held_out_p90:.1%}]"
        if residual.held_out_median is not None and residual.held_out_p90 is not None
        else ""
    )
    print(
        f"{what}: {residual.points} points, median {residual.median:.1%}, "
        f"p90 {residual.p90:.1%}{unseen}"
    )
    for name, value in fit.values.items():
        print(f"    {name:<18} {value:.4g} ± {fit.errors[name]:.2g}")


def _write(path: Path, value: Rates | LinkFile | Mapping[str, object]) -> None:
    text = msgspec.json.format(msgspec.json.encode(value), indent=1)
    path.write_bytes(text + b"\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
