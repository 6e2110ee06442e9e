"""Rates of kernels and links alone → as they are inside training.

product      seconds of matrix products over those alone             per device
fill, wave   what small and partly filled products lose over alone   per device, all
attention    the same of flash kernels                               kernel, device
scores       bytes a score over those counted, of other kernels      kernel
link         seconds of a link's transfers over those inside training  per link
blocked      host seconds of an operator whose kernels are waited for    all
host, elementwise, contention, exposed_tensor …                      per framework
"""

from __future__ import annotations

import re
from dataclasses import replace

from costmodel.coefficients import Coefficients
from costmodel.collectives import LinkRate, LinkRates
from costmodel.launch_floor import LaunchFloor
from costmodel.rates import AttentionRate, MatmulRate, Rates
from costmodel.software import Software
from profiles.cluster import Cluster
from profiles.device import Device
from profiles.precision import Format


def rates_in_training(rates: Rates, device: Device, fitted: Coefficients) -> Rates:
    """*rates* of *device* with its products and attention as fitted."""
    owners = device_owners(device)
    attention = {
        kernel: _attention(kernel, rate, owners, fitted)
        for kernel, rate in rates.attention.items()
    }
    return replace(
        rates,
        matmul=_products(rates.matmul, owners, fitted),
        attention=attention,
    )


def links_in_training(
    links: LinkRates, device: Device, fitted: Coefficients
) -> LinkRates:
    """*links* with the share of bandwidth that training leaves them, as fitted."""
    architecture = device.architecture.lower()

    def slowed(link: LinkRate) -> LinkRate:
        slower = fitted.of("link", f"{link.name}/{architecture}", link.name)
        return replace(link, training=_saturated(link.training / slower))

    return replace(links, inner=slowed(links.inner), outer=slowed(links.outer))


def software_in_training(software: Software, fitted: Coefficients) -> Software:
    """*software* with its own numbers as fitted."""
    owners = (software.name, software.generation)
    host = fitted.of("host", *owners)
    return replace(
        software,
        forward_host_us=software.forward_host_us * host,
        backward_host_us=software.backward_host_us * host,
        quantise_bytes=software.quantise_bytes * fitted.of("quantise", *owners),
        elementwise=software.elementwise * fitted.of("elementwise", *owners),
        reduction=software.reduction * fitted.of("reduction", *owners),
        contention=software.contention * fitted.of("contention", *owners),
        exposed_tensor=software.exposed_tensor * fitted.of("exposed_tensor", *owners),
        launch_floor=LaunchFloor(
            alone=software.launch_floor.alone * fitted.of("sharpness", *owners),
            together=software.launch_floor.together * fitted.of("together", *owners),
        ),
        host_wait=software.host_wait * fitted.of("host_wait", *owners),
        exposed_expert=software.exposed_expert * fitted.of("exposed_expert", *owners),
        expert_launch=software.expert_launch * fitted.of("expert_launch", *owners),
    )


def blocked(cluster: Cluster, fitted: Coefficients) -> float:
    """How much longer a host takes to issue an operator that waits for each kernel."""
    return fitted.of("blocked") if cluster.blocks_launches else 1.0


def device_owners(device: Device) -> tuple[str, ...]:
    """Whose coefficients a device takes: its own, its kin's, its architecture's."""
    names = [device.name, device.kin] if device.kin else [device.name]
    return (*map(_slug, names), device.architecture.lower())


def _products(
    rate: MatmulRate, owners: tuple[str, ...], fitted: Coefficients
) -> MatmulRate:
    slower = fitted.of("product", *owners)
    half = Format.FP16.value  # 16 bits have one rate alone, whichever was measured
    alone = {half: rate.sustained_of(Format.FP16), **rate.sustained}
    sustained = {
        number: share / slower / fitted.of(f"product-{number}", *owners)
        for number, share in alone.items()
    }
    smaller = fitted.of("fill", *owners)
    return replace(
        rate,
        sustained=sustained,
        default=rate.default / slower,
        fill_k=rate.fill_k * smaller,
        edge=rate.edge * smaller,
        wave=min(rate.wave * fitted.of("wave", *owners), 1.0),
    )


def _saturated(share: float) -> float:
    """*share* of the bandwidth alone, which it approaches and never passes."""
    return float(share / (1.0 + share**8) ** 0.125)


def _attention(
    kernel: str, rate: AttentionRate, owners: tuple[str, ...], fitted: Coefficients
) -> AttentionRate:
    if rate.writes_scores:
        more = fitted.of("scores", kernel)
        return replace(
            rate,
            forward_bytes_per_score=rate.forward_bytes_per_score * more,
            backward_bytes_per_score=rate.backward_bytes_per_score * more,
            forward_cast_bytes=rate.forward_cast_bytes * more,
            backward_cast_bytes=rate.backward_cast_bytes * more,
        )
    names = (*(f"{kernel}/{owner}" for owner in owners), kernel)
    slower = fitted.of("attention", *names)
    return replace(rate, forward=rate.forward / slower, backward=rate.backward / slower)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
