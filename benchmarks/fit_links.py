"""Fit the rates of links to published collectives and sends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.fit import calibration as fits
from benchmarks.fit import published
from benchmarks.fit.published import Transfers
from benchmarks.fit_report import BORROWED, GUESSED, PUBLISHED, show
from costmodel.machine.collectives import LinkFile, LinkRate, LinkRates
from costmodel.machine.rates import Residual
from profiles.units import GB

NCCL_TRAINING = 1 / 1.3
NCCL_TRAINING_SOURCE = "NCCL takes some 30 % longer inside training than alone (vTrain)"
FABRIC_TRAINING = 0.55 / 0.95
FABRIC_TRAINING_SOURCE = (
    "real fabrics reach 50-60 % of line rate inside training (fitted, public runs)"
)
# What NCCL's tuner takes for a step of a ring over a network, NVLink and PCIe
# (src/graph/tuning.cc, hwLatencies, simple protocol; from memory).
RING_HOP_S = 1.4e-5
NVLINK_RING_HOP_S = 3.4e-6
PCIE_RING_HOP_S = 5.7e-6

_KINDS = {
    "nvlink/volta": "nvlink2",
    "nvlink/ampere": "nvlink3-mesh",
    "nvlink/hopper": "nvlink4-mesh",
    "nvlink/blackwell": "nvlink5-mesh",
    "nvlink": "nvlink4-mesh",
    "nvswitch/volta": "nvlink3",
    "nvswitch/ampere": "nvlink3",
    "nvswitch/hopper": "nvlink4",
    "nvswitch/blackwell": "nvlink5",
    "nvswitch": "nvlink4",
    "xgmi": "xgmi",
    "pcie": "pcie",
    "ici": "ici",
    "infiniband": "infiniband",
    "roce": "infiniband",
    "slingshot": "slingshot",
    "efa": "efa",
    "omni-path": "omni-path",
    "ethernet": "ethernet",
    "ena": "ena",
    "loopback": "loopback",
}

_LINK = LinkRate(
    name="start",
    fraction=0.8,
    send_fraction=0.6,
    exchange_fraction=0.7,
    half_bytes=2e6,
    launch_s=1.5e-5,
    hop_s=3e-6,
    ring_hop_s=NVLINK_RING_HOP_S,
    training=1.0,
    source="start of the fit",
    training_source="",
    residual=GUESSED,
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
            ring_hop_s=PCIE_RING_HOP_S,
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
    found["ici"] = _torus(found["nvlink4"])
    for name in ("nvlink3", "nvlink4", "nvlink5"):
        found[f"{name}-mesh"] = _mesh(found[name])
    found |= _fabrics(folder, measured)
    return LinkFile(rates=found, kinds=_KINDS, default="ethernet")


def _torus(switched: LinkRate) -> LinkRate:
    """Links of a torus of TPUs, of which nothing is measured."""
    return replace(
        switched,
        name="ici",
        ring_hop_s=0.0,
        fraction=0.8,
        send_fraction=round(0.8 / 6, 4),
        exchange_fraction=0.4,
        launch_s=1e-6,
        hop_s=5e-8,
        training=1.0,
        source=(
            "assumed: rings along all axes of a torus at once reach 0.8, one send "
            "takes one of six links, an all-to-all crosses half a torus; 1 us a hop, "
            "3 (k^1/3 - 1) hops for k chips"
        ),
        training_source="assumed: copies are the compiler's, beside the matrix units",
        residual=Residual(median=0.5, p90=1.0, points=0),
    )


def _mesh(switched: LinkRate) -> LinkRate:
    """The same links without a switch: of a domain of four, a third to each peer."""
    return replace(
        switched,
        name=f"{switched.name}-mesh",
        direct=1.0,
        send_fraction=min(switched.send_fraction, switched.fraction / 3),
        source=f"{switched.source}; without a switch every pair has its own links",
        residual=BORROWED,
    )


def _nvlink3(folder: Path, base: LinkRates) -> LinkRate:
    table = published.collectives(folder, "A100-SXM-80GB", source="vTrain")
    table = published.thinned(table)
    four = (fits.FRACTION, fits.HALF, fits.LAUNCH, fits.HOP)
    fit = fits.fit_inner(table, base, four)
    show("nvlink3", fit)
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
    show("nvlink2", fit)
    source = (
        "vTrain's V100 all-reduce tables, 2, 4 and 8 ranks (one pair joined by a "
        "single link), and Aceso's sends (a pair joined by two)"
    )
    link = fits.link_with(replace(base.inner, name="nvlink2"), fit, source)
    sends = fits.fit_send(pairs, replace(base, inner=link), same_node=True)
    show("nvlink2 send", sends)
    return fits.with_values(link, sends.values)


def _nvlink5(folder: Path, base: LinkRates) -> LinkRate:
    ring = 682.2 / 900
    link = replace(base.inner, name="nvlink5", fraction=ring)
    base = replace(base, inner=link, inner_bytes_per_s=900 * GB)
    table = published.collectives(
        folder, "B200-SXM-180GB", source="ml-engineering", note="AWS P6-B200"
    )
    inside = _where(table, table.nodes == 1)
    fit = fits.fit_inner(inside, base, (fits.HALF, fits.LAUNCH))
    show("nvlink5", fit)
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
    show("infiniband", fit)
    source = (
        "fraction: DGX A100 192 of 200 GB/s, DGX H100 380 of 400; sizes: H100, 4 and 8 "
        "nodes; sends: Galvatron 8 of 12.5 GB/s; all-to-all: SimAI's ratios; a ring's "
        "step: NCCL's tuner (hwLatencies, from memory)"
    )
    infiniband = fits.link_with(
        replace(start, launch_s=5e-6, ring_hop_s=RING_HOP_S), fit, source
    )
    efa_table = published.collectives(
        folder, "B200-SXM-180GB", source="ml-engineering", note="EFA"
    )
    efa_base = replace(base, inner_bytes_per_s=900 * GB, outer=infiniband)
    efa_fit = fits.fit_outer(efa_table, efa_base, (fits.HALF, fits.LAUNCH))
    show("efa", efa_fit)
    efa_source = "B200, 4 nodes of AWS P6-B200 (8 x 400 Gb/s EFA)"
    ethernet = replace(
        infiniband,
        name="ethernet",
        fraction=0.9,
        launch_s=5e-5,
        source="as infiniband, with the latency of TCP (assumed)",
        residual=GUESSED,
    )
    return {
        "infiniband": infiniband,
        "efa": fits.link_with(replace(infiniband, name="efa"), efa_fit, efa_source),
        "ethernet": ethernet,
        "ena": replace(
            ethernet,
            name="ena",
            node_bytes_per_s=2.5e9,
            flow_bytes_per_s=6.25e8,
            source="as ethernet; Amazon limits a TCP flow to 5 Gbit/s, inside a "
            "placement group to 10 (EC2 user guide, network bandwidth): a send is one "
            "flow, NCCL's rings are four (two channels of 10 or four of 5)",
        ),
        "loopback": replace(
            infiniband,
            name="loopback",
            fraction=1.0,
            send_fraction=1.0,
            exchange_fraction=1.0,
            launch_s=3e-5,
            ring_hop_s=0.0,
            training=1.0,
            source="assumed: a profile of the machine replaces it",
            training_source="assumed",
            residual=GUESSED,
        ),
        "slingshot": replace(
            infiniband,
            name="slingshot",
            source="as infiniband: nothing is measured of it alone",
            residual=GUESSED,
        ),
        # 23 to 55 Gb/s of a tensor all-reduced by 64 ranks, twice as many on the wire.
        "omni-path": replace(
            infiniband,
            name="omni-path",
            fraction=110 / 400,
            send_fraction=110 / 400,
            exchange_fraction=110 / 400,
            training=float(np.sqrt(46 / 110)),
            source="Jean Zay: up to 55 Gb/s all-reduced on 4 x 100 Gb/s (hw.csv)",
            training_source="the middle of 23 to 55 Gb/s: other jobs share the network",
            residual=GUESSED,
        ),
    }


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


def _where(table: Transfers, chosen: NDArray[np.bool_]) -> Transfers:
    return Transfers(
        ranks=table.ranks[chosen],
        nodes=table.nodes[chosen],
        size_bytes=table.size_bytes[chosen],
        seconds=table.seconds[chosen],
    )
