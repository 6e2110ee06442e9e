"""`Calibration`: what a user's own runs say of the coefficients, and how surely.

The published fit is the prior, a handful of runs the evidence. Parameters are
logarithms of coefficients, and of the pace of a whole step that none explains:

    product/hopper, host/megatron …        `costmodel.machine.coefficients`
    step/framework:nemo, step/device:…     everything under a framework, on a device,
    step/precision:…, step/model:…         in a precision, of models of one shape
    step/samples:…                         where prices are measured samples
    kept/framework:…, beside/device:…      bytes of activations; GiB beside tensors

`costmodel.runs.calibrate` makes one of a table of runs. Applied to a machine it changes
its coefficients, its pace and its memory habits: so bounds of a search stay bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.machine.coefficients import Coefficients
from costmodel.machine.framework import Framework
from profiles.models import DecoderSpec, Job
from profiles.units import GiB

Floats = NDArray[np.float64]
KEPT: Final = "kept"
BESIDE: Final = "beside"
PACE: Final = "step"
# By how many doublings of a degree, or of the micro-batch, what seen runs tell of a
# layout's uncertainty falls by a factor e [fitted] to the predictive variance by each
# layout's own slopes: 0.95 of it is left at one doubling, 0.74 at three, 0.59 at four.
REACH: Final = 8.0
DEGREES: Final = ("tp", "pp", "cp", "ep", "dp", "micro_batch")
STRANGER: Final = 4.0  # doublings that another framework or device counts for, each


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One number before and after: a factor, or GiB of `beside`. `spread` and `error`
    are standard deviations of its logarithm (of GiB as they are), `rows` how many runs
    it hangs on."""

    name: str
    before: float
    after: float
    spread: float
    error: float
    rows: int

    @property
    def change(self) -> float:
        """Of the logarithm, or of GiB."""
        if self.name.startswith(BESIDE):
            return self.after - self.before
        return float(np.log(self.after / self.before))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRun:
    """What tells how near a question is to a run: where it ran, its degrees (as powers
    of two), and how its logarithm hangs on each parameter."""

    row: str
    framework: str
    device: str
    degrees: tuple[float, ...]
    slopes: Mapping[str, float]
    estimated_s: float | None  # before
    calibrated_s: float | None
    measured_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutRun:
    """A run that was not used, and why."""

    row: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The parameters of the step time with their covariances, by name in their order,
    those of memory, and the runs. `coefficients` is the hash of those that it changes;
    `noise` what one run scatters, before and after; `memory_narrower` how many times as
    wide as before intervals of memory are, by framework and device."""

    coefficients: str
    step: tuple[Parameter, ...] = ()
    before: tuple[tuple[float, ...], ...] = ()
    after: tuple[tuple[float, ...], ...] = ()
    noise: tuple[float, float] = (1.0, 1.0)
    memory: tuple[Parameter, ...] = ()
    memory_narrower: Mapping[str, float]
    runs: tuple[SeenRun, ...] = ()
    left_out: tuple[LeftOutRun, ...] = ()

    @cached_property
    def changes(self) -> Mapping[str, float]:
        """By how much each parameter moved."""
        return {one.name: one.change for one in (*self.step, *self.memory)}

    @cached_property
    def reduction(self) -> Floats:
        """The covariance before less that after."""
        return np.asarray(np.subtract(self.before, self.after), dtype=np.float64)

    def coefficients_in(self, known: Coefficients) -> Coefficients:
        """*known* as calibrated."""
        names = {item.name for item in known.entries}
        return known.changed(
            {one.name: one.after for one in self.step if one.name in names}
        )

    def pace(self, names: frozenset[str]) -> float:
        """How many times as long a step takes, of the *names* that it hangs on."""
        paces = (one for one in self.step if one.name.startswith(f"{PACE}/"))
        return exp(sum(one.change for one in paces if one.name in names))

    def document(self) -> dict[str, Any]:
        """What `--json` prints as `calibration`."""
        return {
            "rows_used": len(self.runs),
            "left_out": [{"row": one.row, "why": one.why} for one in self.left_out],
            "noise": {"before": self.noise[0], "after": self.noise[1]},
            "moved": [
                {
                    "name": one.name,
                    "before": one.before,
                    "after": one.after,
                    "spread": one.spread,
                    "error": one.error,
                    "rows": one.rows,
                }
                for one in (*self.step, *self.memory)
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A calibration, and which of its parameters the prices of a machine hang on."""

    calibration: Calibration
    names: frozenset[str]
    framework: str
    device: str

    def narrower(self, degrees: tuple[float, ...]) -> float:
        """How many times as wide as before the interval of a step is.

        The nearest run stands for the question: its slopes, as far as the question
        hangs on the same parameters, and less the farther the layouts are apart.
        """
        known = self.calibration
        if not known.step:
            return 1.0
        run, apart = self._nearest(degrees)
        names = [one.name for one in known.step]
        slopes = np.array([run.slopes.get(name, 0.0) for name in names])
        shared = slopes * np.array([name in self.names for name in names])
        first, last = (one**2 for one in known.noise)
        whole = float(slopes @ np.array(known.before) @ slopes) + first
        told = float(shared @ known.reduction @ shared) * exp(-apart / REACH)
        return sqrt(max(whole - told + last - first, 0.0) / whole)

    def remembering(self, base: Framework) -> Framework:
        """*base* with its memory as calibrated."""
        changes, habits = self.calibration.changes, base.footprint
        narrower = self.calibration.memory_narrower
        key = f"{self.framework}/{self.device}"
        found = replace(
            habits,
            kept=habits.kept
            * exp(changes.get(f"{KEPT}/framework:{self.framework}", 0)),
            beside_bytes=habits.beside_bytes
            + changes.get(f"{BESIDE}/device:{self.device}", 0.0) * GiB,
            memory_spread=habits.memory_spread * narrower.get(key, 1.0),
        )
        return replace(base, footprint=found)

    def _nearest(self, degrees: tuple[float, ...]) -> tuple[SeenRun, float]:
        """The run that is most alike, and how many doublings it is away."""

        def apart(run: SeenRun) -> float:
            strange = (run.framework != self.framework) + (run.device != self.device)
            gap = np.subtract(degrees, run.degrees)
            return float(np.sqrt(gap @ gap)) + STRANGER * strange

        found = min(self.calibration.runs, key=apart)
        return found, apart(found)


def step_names(
    framework: str, device: str, precision: str, job: Job, *, sampled: bool
) -> Iterator[str]:
    """The paces of a whole step that a price hangs on."""
    yield f"{PACE}/framework:{framework}"
    yield f"{PACE}/device:{device}"
    yield f"{PACE}/precision:{precision}"
    yield f"{PACE}/model:{shape_of(job)}"
    if sampled:
        yield f"{PACE}/samples:{device}"


def shape_of(job: Job) -> str:
    """What models of one shape share: dense or with experts, layers and hidden size."""
    spec = job.spec
    if not isinstance(spec, DecoderSpec):
        return f"{spec.family}-{job.graph.body}x{job.graph.narrowest:g}"
    kind = "dense" if spec.moe is None else "moe"
    return f"{kind}-{spec.layers}x{spec.hidden}"


def degrees_of_summary(summary: Mapping[str, Any]) -> tuple[float, ...]:
    """The degrees of a layout as powers of two; where stages differ, none."""
    return tuple(float(np.log2(summary.get(name) or 1)) for name in DEGREES)
