"""Fit the parameters of the price functions to measured times, keeping the residuals.

The price functions themselves are called, so what is fitted is what is priced. How a
fit is made, and what it says about its own error, is in `fitting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.fit.fitting import Fitted, Parameter, Values, fitted
from benchmarks.fit.published import AttentionTimes, Products, Traffic, Transfers
from costmodel.machine.collectives import (
    Collective,
    LinkRate,
    LinkRates,
    collective_s,
    send_s,
)
from costmodel.machine.kernels import (
    AttentionShape,
    ElementBytes,
    attention_s,
    grouped_matmul_s,
    matmul_s,
)
from costmodel.machine.rates import AttentionRate, MatmulRate, Rates
from profiles.hardware.clusters import Device
from profiles.hardware.precisions import Format

Floats = NDArray[np.float64]
Rate = TypeVar("Rate", MatmulRate, AttentionRate, LinkRate)


def products_s(table: Products, device: Device, rates: Rates) -> Floats:
    """The price of each row of *table*."""
    each = matmul_s(
        table.m,
        table.n,
        table.k,
        table.batch,
        device=device,
        rates=rates,
        number=table.number,
        stored=ElementBytes(output=table.output_bytes),
    )
    return np.asarray((each * table.counts).sum(axis=1))


def grouped_s(table: Products, device: Device, rates: Rates) -> Floats:
    """The price of each row of *table*, launched as one group of products."""
    each = grouped_matmul_s(
        table.batch,
        table.m,
        table.n,
        table.k,
        device=device,
        rates=rates,
        number=table.number,
        stored=ElementBytes(output=table.output_bytes),
    )
    return np.asarray(each[:, 0])


MATMUL = (
    Parameter(name="sustained", start=0.75, low=0.2, high=1.0),
    Parameter(name="edge", start=50.0, low=0.0, high=400.0),
    Parameter(name="fill_k", start=100.0, low=0.0, high=2000.0),
    Parameter(name="wave", start=0.5, low=0.0, high=1.0),
    Parameter(name="overhead_s", start=4e-6, low=2e-6, high=5e-5),
)


def fit_matmul(
    table: Products,
    device: Device,
    rates: Rates,
    parameters: Sequence[Parameter] = MATMUL,
) -> Fitted:
    """The shape parameters of *device*'s products; its bandwidth is as given."""

    def predict(values: Values) -> Floats:
        return products_s(table, device, with_matmul(rates, values, table.number))

    return fitted(predict, table.seconds, parameters)


def with_matmul(rates: Rates, values: Values, number: Format) -> Rates:
    """*rates* with fitted *values* of its products; `sustained` is that of *number*."""
    rest = dict(values)
    sustained = rest.pop("sustained", rates.matmul.sustained_of(number))
    share = {**rates.matmul.sustained, number.value: sustained}
    matmul = replace(rates.matmul, sustained=share)
    return replace(rates, matmul=with_values(matmul, rest))


def with_values(rate: Rate, values: Values) -> Rate:
    """*rate* with the fields that *values* names."""
    changed: dict[str, Any] = dict(values)
    return replace(rate, **changed)


def fit_groups(table: Products, device: Device, rates: Rates) -> Fitted:
    """What each further product of a grouped launch costs."""

    def predict(values: Values) -> Floats:
        matmul = with_values(rates.matmul, values)
        return grouped_s(table, device, replace(rates, matmul=matmul))

    only = (Parameter(name="group_s", start=1e-5, low=0.0, high=1e-3),)
    return fitted(predict, table.seconds, only)


ATTENTION = (
    Parameter(name="forward", start=0.5, low=0.05, high=1.0),
    Parameter(name="backward", start=0.4, low=0.05, high=1.0),
    Parameter(name="half_head", start=20.0, low=0.0, high=200.0),
    Parameter(name="forward_tail", start=0.5, low=0.0, high=4.0),
    Parameter(name="backward_tail", start=0.5, low=0.0, high=4.0),
)


def fit_attention(
    forward: AttentionTimes, backward: AttentionTimes, device: Device, rates: Rates
) -> Fitted:
    """One flash kernel of *device*, both directions at once."""
    base = rates.attention["flash-2"]

    def predict(values: Values) -> Floats:
        rate = with_values(base, values)
        return flash_s(rate, forward, backward, device, rates)

    measured = np.concatenate([forward.seconds, backward.seconds])
    return fitted(predict, measured, ATTENTION)


def flash_s(
    rate: AttentionRate,
    forward: AttentionTimes,
    backward: AttentionTimes,
    device: Device,
    rates: Rates,
) -> Floats:
    """The price of each row of *forward*, then of each row of *backward*."""
    trial = replace(rates, attention={**rates.attention, "flash-2": rate})
    both = [
        attention_s(
            "flash-2",
            direction,
            AttentionShape(
                batch_heads=table.batch_heads,
                seq_q=table.sequence,
                seq_kv=table.sequence,
                head_dim=table.head_dim,
                causal=True,
            ),
            device=device,
            rates=trial,
            number=Format.BF16,
        )
        for direction, table in (("forward", forward), ("backward", backward))
    ]
    return np.concatenate(both)


def fit_traffic(table: Traffic, device: Device, overhead_s: float) -> Fitted:
    """The share of *device*'s bandwidth that memory-bound kernels reach."""

    def predict(values: Values) -> Floats:
        bandwidth = values["fraction"] * device.memory_bytes_per_s
        return table.size_bytes / bandwidth + overhead_s

    only = (Parameter(name="fraction", start=0.8, low=0.1, high=1.0),)
    return fitted(predict, table.seconds, only)


def fit_scores(table: Traffic, device: Device, rates: Rates) -> Fitted:
    """Bytes a score costs in softmax and dropout, at the traffic rate of *device*."""
    bandwidth = rates.traffic.fraction * device.memory_bytes_per_s

    def predict(values: Values) -> Floats:
        overhead_s = 2.0 * rates.traffic.overhead_s
        return table.size_bytes * values["bytes_per_score"] / bandwidth + overhead_s

    only = (Parameter(name="bytes_per_score", start=8.0, low=1.0, high=100.0),)
    return fitted(predict, table.seconds, only)


FRACTION = Parameter(name="fraction", start=0.8, low=0.2, high=1.2)
HALF = Parameter(name="half_bytes", start=2e6, low=0.0, high=1e8)
LAUNCH = Parameter(name="launch_s", start=1.5e-5, low=0.0, high=3e-4)
HOP = Parameter(name="hop_s", start=3e-6, low=0.0, high=5e-5)
DIRECT = Parameter(name="direct", start=0.7, low=0.2, high=1.2)


def fit_inner(
    table: Transfers, base: LinkRates, parameters: Sequence[Parameter]
) -> Fitted:
    """The inner link's parameters from all-reduces inside one domain."""

    def predict(values: Values) -> Floats:
        return all_reduces_s(
            table, replace(base, inner=with_values(base.inner, values))
        )

    return fitted(predict, table.seconds, parameters)


def fit_outer(
    table: Transfers, base: LinkRates, parameters: Sequence[Parameter]
) -> Fitted:
    """The outer link's parameters from all-reduces over whole domains."""

    def predict(values: Values) -> Floats:
        return all_reduces_s(
            table, replace(base, outer=with_values(base.outer, values))
        )

    return fitted(predict, table.seconds, parameters)


def all_reduces_s(table: Transfers, rates: LinkRates) -> Floats:
    """The stand-alone price of each row of *table*."""
    return collective_s(
        Collective.ALL_REDUCE,
        table.size_bytes,
        ranks=table.ranks,
        ranks_per_node=table.ranks / table.nodes,
        rates=rates,
        alone=True,
    )


def fit_send(table: Transfers, base: LinkRates, *, same_node: bool) -> Fitted:
    """The share of a link that one send reaches; the rest of the link is as given."""

    def predict(values: Values) -> Floats:
        link = base.inner if same_node else base.outer
        link = with_values(link, values)
        trial = replace(base, inner=link) if same_node else replace(base, outer=link)
        return send_s(table.size_bytes, same_node=same_node, rates=trial, alone=True)

    only = (Parameter(name="send_fraction", start=0.5, low=0.02, high=1.0),)
    return fitted(predict, table.seconds, only)


def link_with(base: LinkRate, fit: Fitted, source: str) -> LinkRate:
    """*base* with the values of *fit* and its residual."""
    link = with_values(base, fit.values)
    return replace(link, residual=fit.residual, source=source)
