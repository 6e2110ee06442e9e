"""How far off an estimate may be: the residuals of runs that the fit never saw.

    h = h0 · exp(Σ w · rarity(families seen) + g · doublings + e · exchanged)

is half of the p10-p90 interval of log(measured / estimated). h0 is that of a run whose
framework, device, operators and precision many families of published runs were measured
with. `rarity` is 1 of what none was measured with, a half of one family, and so on: for
a framework never seen the interval is exp(w) times as wide. Of a run's operators the
rarest counts (experts, state spaces). `doublings` are those of the GPUs beyond the
largest run that was seen. `exchanged` is the share of the step that waits for other
ranks' data beyond tensor parallelism (`EXCHANGED`): networks between nodes are known
less well than what happens inside one.
`benchmarks/fit_uncertainty.py` fits the numbers to residuals of runs whose source, or
family, was left out of the fit, each with what is seen then (quantile regression;
Koenker and Bassett, 1978), and sets h0 so that 80 % of them without their source lie
inside, a source of n runs weighing n^0.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log2
from operator import mul
from pathlib import Path
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np

from costmodel.layout import Layout, Stage
from costmodel.machine import (
    GENERIC,
    Framework,
    Machine,
    Sourced,
    degrees_of_summary,
)
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
from profiles.errors import InvalidFile
from profiles.models import Job


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
    total = _summed(layout_tied_sync(layout, job, on))
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


PATH: Final = Path(__file__).parents[1] / "data" / "uncertainty.json"
P90: Final = NormalDist().inv_cdf(0.9)
GENERIC_FACTOR: Final = 2.0  # [assumed] a device whose architecture nobody measured
EXCHANGED: Final = ("context_comm", "expert_comm", "pipeline_comm", "data_comm")
TINY: Final = 1e-30  # seconds; a step of none at all waits for nothing
# Separate launches of one layout on an idle two-core machine: 1.3 to 4 % apart.
STEP_NOISE: Final = 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run is told by that others were measured with, or were not."""

    framework: str
    device: str
    operators: frozenset[str]  # their kinds
    precision: str
    gpus: int

    @classmethod
    def of(cls, job: Job, layout: Layout, on: Machine) -> Setting:
        """Of a layout of *job* on a machine."""
        kinds = {item.kind for block, _ in job.graph.blocks for item in block.operators}
        return cls(
            framework=on.framework.name,
            device=on.device.name,
            operators=frozenset(kind.value for kind in kinds),
            precision=layout.precision_name,
            gpus=layout.gpus,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How many families of runs were measured with each framework, device, kind of
    operator and precision, and on how many GPUs at most."""

    frameworks: Mapping[str, int]
    devices: Mapping[str, int]
    operators: Mapping[str, int]
    precisions: Mapping[str, int]
    most_gpus: int

    def distances(self, of: Setting) -> tuple[float, ...]:
        """How far a setting is from what was seen: see `Calibration.far`."""
        return (
            rarity(self.frameworks.get(of.framework, 0)),
            rarity(self.devices.get(of.device, 0)),
            max(rarity(self.operators.get(kind, 0)) for kind in of.operators),
            rarity(self.precisions.get(of.precision, 0)),
            max(log2(of.gpus / self.most_gpus), 0.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the file holds. `rows`, `inside`, `inside_family` and `half_over_error` say
    how it came out: runs, the shares inside without their source and their family, and
    the median half-width over the median error."""

    step: float  # h0
    framework: float
    device: float
    operator: float
    precision: float
    scale: float  # for each doubling
    exchange: float
    seen: Seen
    rows: int
    inside: float
    inside_family: float
    half_over_error: float

    @property
    def far(self) -> tuple[float, ...]:
        """By which power of e each of `Seen.distances` widens."""
        kinds = self.framework, self.device, self.operator, self.precision
        return (*kinds, self.scale)

    def half_width(
        self, of: Setting, *, exchanged: float, seen: Seen | None = None
    ) -> float:
        """Half of the p10-p90 interval of log(measured / estimated) seconds, by all
        that was *seen* unless by less of it."""
        distances = (seen or self.seen).distances(of)
        far = sum(map(mul, self.far, distances))
        return self.step * exp(far + self.exchange * exchanged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The standard deviation of log(measured / estimated) of the step time; those of
    memory are `Memory`'s."""

    step_sigma: float

    @property
    def step_time(self) -> tuple[float, float]:
        """p10 and p90 as factors of the estimate."""
        return exp(-P90 * self.step_sigma), exp(P90 * self.step_sigma)


def deviations(probability: float) -> float:
    """How many standard deviations are left free by what fits with *probability*."""
    return NormalDist().inv_cdf(probability)


def with_odds(on: Machine, probability: float) -> Machine:
    """*on* with as much memory left free as makes an estimate fit with *probability*;
    at 0.5 it is taken at its word."""
    free = deviations(probability)

    def leaving(one: Framework) -> Framework:
        return replace(one, footprint=replace(one.footprint, deviations=free))

    plain = None if on.plain is None else leaving(on.plain)
    return replace(on, framework=leaving(on.framework), plain=plain)


def probability_fits(needed: float, spread: float, capacity: float) -> float:
    """The odds that what is *needed* at once, give or take its *spread*, is no more
    than the *capacity*; bytes.

    >>> probability_fits(70.0, 5.0, 70.0), probability_fits(70.0, 0.0, 80.0)
    (0.5, 1.0)
    """
    return NormalDist().cdf((capacity - needed) / max(spread, TINY))


def rarity(families: int) -> float:
    """1 where no family of runs was measured, less where some were.

    >>> rarity(0), rarity(1), rarity(19)
    (1.0, 0.5, 0.05)
    """
    return 1.0 / (1 + families)


def exchanged_share(breakdown_s: Mapping[str, float]) -> float:
    """The share of a step that waits for data of other ranks, of its parts' seconds.

    >>> exchanged_share({"compute": 3.0, "data_comm": 1.0})
    0.25
    """
    waited = sum(breakdown_s.get(name, 0.0) for name in EXCHANGED)
    return waited / max(sum(breakdown_s.values()), waited, TINY)


@lru_cache(maxsize=1)
def calibration() -> Calibration:
    """The fitted one; raises InvalidFile if its file is damaged."""
    try:
        return msgspec.json.decode(PATH.read_bytes(), type=Calibration)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidFile(f"{PATH} does not hold an uncertainty: {error}") from error


def spread_of(
    on: Machine,
    setting: Setting,
    *,
    exchanged: float = 0.0,
    sources: PriceSources | None = None,
    layout: Layout | None = None,
) -> Spread:
    """The spread of a price on a machine; of samples, where there are some.

    *exchanged* is the share of the step that waits for data (`exchanged_share`). Where
    runs of the user's own calibrate the machine it is less, the nearer they are to
    *layout*.

    A busy machine or a wrong clock shifts all samples alike, so their deviations add
    up as they are, and so does that of the share without samples. Samples that repeat
    are no surer than the machine was steady while they were taken (`Measured.noise`),
    and a step never repeats better than `STEP_NOISE`.
    """
    half = calibration().half_width(setting, exchanged=exchanged)
    step = half / P90 * (GENERIC_FACTOR if on.rates.kin == GENERIC else 1.0)
    if sources is not None:
        sampled = 1.0 - sources.roofline
        sigma = max(sources.sigma, on.measured.noise if on.measured else 0.0)
        step = max(sampled * sigma + sources.roofline * step, STEP_NOISE)
    if on.known is not None and layout is not None:
        step *= on.known.narrower(degrees_of_summary(layout.summary))
    return Spread(step_sigma=step)
