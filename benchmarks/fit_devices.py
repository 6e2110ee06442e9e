"""Fit the rates of devices to published products, attention cores and traffic.

Three devices have tables of their own (V100, A100-PCIe, B200), a fourth in fp8 only
(H800). The others take the shape of one of these, scaled by the best shape that
anyone measured on them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.fit import calibration as fits
from benchmarks.fit import published, published_aceso
from benchmarks.fit.fitting import Fitted
from benchmarks.fit_report import BORROWED, GUESSED, PUBLISHED, show
from costmodel.machine.rates import (
    AttentionRate,
    MatmulRate,
    Rates,
    Residual,
    TrafficRate,
)
from profiles.hardware.catalog import device as device_of
from profiles.hardware.precisions import Format
from profiles.units import GB, TFLOPS

SIMUMAX = "SimuMax's table of measured shapes (hw_gemm.csv)"
MAMF = "maximum achievable matmul FLOP/s (ml-engineering, hw.csv)"
ACESO = "Aceso's V100-32GB operator profiles (layer_times.csv)"
# Between two kernels of one stream a device idles 2 to 5 us; the A100's products fit 2.
OVERHEAD_S = 4e-6
# The host takes about 10 us to issue a kernel: Aceso's shortest module forwards, of
# some three kernels each, take 34 to 39 us however small their tensors are.
LAUNCH_S = 1.2e-5
LAUNCH_SOURCE = f"{ACESO}: shortest forwards, 34-39 us for about three kernels"


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
    traffic = fits.fit_traffic(published_aceso.traffic(folder), device, OVERHEAD_S)
    show("v100 traffic", traffic)
    rates = _with_traffic(rates, traffic.values["fraction"], traffic.residual, ACESO)
    table = published_aceso.products(folder)
    shape = fits.fit_matmul(table, device, rates, fits.MATMUL[:-1])
    rates = _with_products(rates, shape, table, ACESO)
    per_score = {}
    for direction in ("forward", "backward"):
        fit = fits.fit_scores(published_aceso.scores(folder, direction), device, rates)
        show(f"v100 fused-softmax {direction}", fit)
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
    show("a100 flash-2", flash)
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
        source="Shah et al. 2024: 35 % on H100; backward in A100's proportion",
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
    show("b200 flash-3", flash)
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


def _eager(fused: AttentionRate) -> AttentionRate:
    """Eager attention: the kernels that the fused softmax replaces, counted.

    Forward: masked fill reads and writes a 16-bit score and reads a byte of mask (5),
    softmax (4), dropout with its mask (5). Backward: dropout (5), softmax (6), masked
    fill (5). The fused kernel's measured bytes stand for softmax and dropout. Scores of
    16 bits are cast to fp32 for mask and softmax, and back (Megatron-LM,
    fused_softmax.py: forward_torch_softmax): cast 6, mask 9, softmax 8, cast 6 instead
    of 9 forward; 6, 12, 9 and 6 instead of 11 backward.
    """
    counted_forward, counted_backward = 14.0 / 9.0, 16.0 / 11.0
    return replace(
        fused,
        forward_bytes_per_score=fused.forward_bytes_per_score * counted_forward,
        backward_bytes_per_score=fused.backward_bytes_per_score * counted_backward,
        forward_cast_bytes=20.0,
        backward_cast_bytes=22.0,
        source="fused-softmax and, counted, the kernels of mask and casts",
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
    show(f"{rates.device} products", fit)
    rates = fits.with_matmul(rates, fit.values, table.number)
    matmul = replace(
        rates.matmul,
        default=fit.values["sustained"],
        source=source,
        residual=fit.residual,
    )
    return replace(rates, matmul=matmul)


def _with_groups(rates: Rates, fit: Fitted) -> Rates:
    show(f"{rates.device} groups", fit)
    return replace(rates, matmul=fits.with_values(rates.matmul, fit.values))


def _flash(fit: Fitted, source: str) -> AttentionRate:
    start = replace(_START.attention["flash-2"], overhead_s=5e-6)
    return replace(
        fits.with_values(start, fit.values), source=source, residual=fit.residual
    )


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
    peak: float = device_of(name).peak_flops_per_s(Format.BF16)
    return _mamf(folder, data_name) * TFLOPS / peak


def _mamf(folder: Path, data_name: str, number: str = "bf16") -> float:
    return published.single_figure(
        folder, data_name, f"MAMF {number} GEMM (best shape)"
    )
