"""`PriceSources`: how much of a price was measured, fitted, or is a roofline's.

Shares of the seconds that the ranks of a pipeline are busy in a step, one rank of each
stage: passes with their communication, gradients, the optimizer. Waiting is no part of
it; data parallelism's exchanges count in full, hidden or not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.layout import Stage
from costmodel.machine import Sourced
from costmodel.stages import (
    LayoutPricer,
    StagePrice,
    accumulated,
    exchanges,
    layout_tied_sync,
    parallel_of,
    sharded_experts,
    transfers,
    unit_work,
    updated,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSources:
    """Shares that sum to 1, and the relative deviation of what has samples."""

    measured: float
    fitted: float
    roofline: float
    sigma: float  # of the measured and fitted share together

    def document(self) -> dict[str, float]:
        """The shares as commands print them."""
        return {
            "measured": self.measured,
            "fitted": self.fitted,
            "roofline": self.roofline,
        }

    def __str__(self) -> str:
        """The shares for a person.

        >>> str(PriceSources(measured=0.934, fitted=0.046, roofline=0.02, sigma=0.0))
        '93.4% measured, 4.6% fitted, 2.0% roofline'
        """
        parts = self.document().items()
        return ", ".join(f"{share:.1%} {name}" for name, share in parts)


def price_sources(pricer: LayoutPricer) -> PriceSources:
    """Where the price of the layout of *pricer* comes from."""
    layout, job, on = pricer.layout, pricer.job, pricer.machine
    m = layout.micro_batches
    total = layout_tied_sync(layout, job, on) * 2.0
    for stage, priced in zip(layout.stages, pricer.stages(), strict=True):
        total = total + _stage(pricer, stage, priced)
    if len(layout.stages) > 1:
        sent = transfers(layout, job, on)
        total = total + _summed(sent) * (2.0 * m)
    busy = float(total.seconds)
    measured, fitted = float(total.measured_s) / busy, float(total.fitted_s) / busy
    known = measured + fitted
    return PriceSources(
        measured=measured,
        fitted=fitted,
        roofline=max(1.0 - known, 0.0),
        sigma=float(total.spread_s) / busy / known if known else 0.0,
    )


def _stage(pricer: LayoutPricer, stage: Stage, priced: StagePrice) -> Sourced:
    """All that a rank of *stage* does in a step, transfers and tied weights apart."""
    precision, on = pricer.layout.precision, pricer.machine
    parallel = parallel_of(stage, 1, pricer.layout.zero_plus).each(np.asarray)
    parameters = np.asarray(priced.parameters)
    frozen = np.asarray(priced.frozen_parameters)
    units, optimizer = len(stage.layers), pricer.job.optimizer
    away = pricer.layout.offload
    sync = exchanges(
        parameters,
        parallel,
        precision,
        on,
        units=units,
        frozen=frozen,
        offload=away,
    )
    passes = pricer.work(stage).sourced
    passes = passes + accumulated(parameters, parallel, precision, on, frozen=frozen)
    step = updated(parameters, parallel, precision, on, optimizer)
    own = unit_work(parameters, parallel, precision, on, units=units)
    experts = np.asarray(priced.expert_parameters)
    if np.any(experts):
        apart = sharded_experts(parallel, on.framework, away)
        sync = sync + exchanges(
            experts, apart, precision, on, units=units, offload=away
        )
        passes = passes + accumulated(experts, apart, precision, on)
        step = step + updated(experts, apart, precision, on, optimizer)
        own = own + unit_work(experts, apart, precision, on, units=units)
    passes = passes + sync.of_micro_batch + own.of_micro_batch
    step = step + own.step
    if away.optimizer:  # no sample is of a step on the host
        step = Sourced(seconds=priced.step_s)
    return passes * float(pricer.layout.micro_batches) + sync.of_step + step


def _summed(several: Sourced) -> Sourced:
    return Sourced(
        seconds=np.asarray(several.seconds.sum()),
        measured_s=np.asarray(several.measured_s.sum()),
        fitted_s=np.asarray(several.fitted_s.sum()),
        spread_s=np.asarray(several.spread_s.sum()),
    )
