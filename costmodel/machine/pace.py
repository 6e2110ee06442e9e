"""Rates under which everything takes so many times as long.

What runs say of a whole step, and no coefficient explains, slows every price alike: so
the step of every layout is longer by that factor, and what bounds it is longer too.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.machine.collectives import LinkRate, LinkRates
from costmodel.machine.framework import Framework
from costmodel.machine.rates import AttentionRate, Rates
from profiles.hardware import Format


def slower_rates(rates: Rates, times: float) -> Rates:
    """*rates* under which every kernel takes so many *times* as long."""
    matmul, traffic = rates.matmul, rates.traffic
    alone = {Format.FP32.value: matmul.sustained_of(Format.FP32), **matmul.sustained}
    return replace(
        rates,
        matmul=replace(
            matmul,
            sustained={number: share / times for number, share in alone.items()},
            default=matmul.default / times,
            bandwidth=matmul.bandwidth / times,
            overhead_s=matmul.overhead_s * times,
            group_s=matmul.group_s * times,
        ),
        attention={
            kernel: _attention(rate, times) for kernel, rate in rates.attention.items()
        },
        traffic=replace(
            traffic,
            fraction=traffic.fraction / times,
            overhead_s=traffic.overhead_s * times,
        ),
        launch_s=rates.launch_s * times,
    )


def slower_links(links: LinkRates, times: float) -> LinkRates:
    """*links* over which every message takes so many *times* as long."""
    return replace(
        links,
        inner=_link(links.inner, times),
        outer=_link(links.outer, times),
        inner_bytes_per_s=links.inner_bytes_per_s / times,
        outer_bytes_per_s=links.outer_bytes_per_s / times,
    )


def slower_framework(framework: Framework, times: float) -> Framework:
    """*framework* whose host takes so many *times* as long."""
    host = framework.host
    return framework.variant(
        host={
            "forward_us": host.forward_us * times,
            "backward_us": host.backward_us * times,
            "gap_us": host.gap_us * times,
            "step_s": host.step_s * times,
        }
    )


def _attention(rate: AttentionRate, times: float) -> AttentionRate:
    """Kernels that write scores move bytes, at the rate of traffic."""
    return replace(
        rate,
        forward=rate.forward / times,
        backward=rate.backward / times,
        overhead_s=rate.overhead_s * times,
    )


def _link(link: LinkRate, times: float) -> LinkRate:
    def slower(rate: float | None) -> float | None:
        return None if rate is None else rate / times

    return replace(
        link,
        launch_s=link.launch_s * times,
        hop_s=link.hop_s * times,
        ring_hop_s=link.ring_hop_s * times,
        node_bytes_per_s=slower(link.node_bytes_per_s),
        flow_bytes_per_s=slower(link.flow_bytes_per_s),
    )
