"""Robust least squares on relative errors, with standard and held-out errors.

    minimise  Σ ρ(ln(predict(x) / measured))  over low ≤ x ≤ high   → fitted

ρ is the soft L1 loss at 5 %: relative errors count, outliers little. Every fit is
repeated without each fifth point, which then tell the error out of sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from costmodel.machine.rates import Residual
from profiles.errors import Unmeasured

Floats = NDArray[np.float64]
Values = Mapping[str, float]
_LOSS_SCALE = 0.05
_DIGITS = 4  # significant ones that are kept of a fitted value
_HELD_OUT = 5  # every fifth point
_FEWEST_TO_HOLD_OUT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One number to fit: where to start and where it may go."""

    name: str
    start: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Values with their standard errors (from the curvature at the optimum)."""

    values: Values
    errors: Values
    residual: Residual


def fitted(
    predict: Callable[[Values], Floats],
    measured: Floats,
    parameters: Sequence[Parameter],
) -> Fitted:
    """Fit *parameters* so that *predict* meets *measured*, both in seconds.

    Raises Unmeasured if there are fewer points than parameters.
    """
    if len(measured) < len(parameters):
        raise Unmeasured(
            f"{len(measured)} measurements cannot fit {len(parameters)} parameters "
            f"({', '.join(item.name for item in parameters)})"
        )
    everything = np.arange(len(measured))
    exact, errors = _solved(predict, measured, parameters, everything)
    values = {name: float(f"{value:.{_DIGITS}g}") for name, value in exact.items()}
    known = _relative_error(predict, measured, values, everything)
    held = everything[::_HELD_OUT] if len(measured) >= _FEWEST_TO_HOLD_OUT else None
    unseen = None
    if held is not None:
        partly, _ = _solved(
            predict, measured, parameters, np.setdiff1d(everything, held)
        )
        unseen = _relative_error(predict, measured, partly, held)
    return Fitted(values=values, errors=errors, residual=residual_of(known, unseen))


def residual_of(errors: Floats, unseen: Floats | None = None) -> Residual:
    """Median and 90th percentile of relative errors, rounded to 0.01 %."""
    return Residual(
        median=_rounded(np.median(errors)),
        p90=_rounded(np.percentile(errors, 90)),
        points=len(errors),
        held_out_median=None if unseen is None else _rounded(np.median(unseen)),
        held_out_p90=None if unseen is None else _rounded(np.percentile(unseen, 90)),
    )


def _solved(
    predict: Callable[[Values], Floats],
    measured: Floats,
    parameters: Sequence[Parameter],
    index: NDArray[np.int64],
) -> tuple[dict[str, float], dict[str, float]]:
    scale = np.array([item.start for item in parameters])
    names = [item.name for item in parameters]

    def named(point: Floats) -> dict[str, float]:
        return dict(zip(names, (point * scale).tolist(), strict=True))

    def miss(point: Floats) -> Floats:
        return np.log(predict(named(point))[index] / measured[index])

    bounds = [
        [getattr(item, end) / item.start for item in parameters]
        for end in ("low", "high")
    ]
    answer = least_squares(
        miss,
        np.ones(len(parameters)),
        bounds=bounds,
        loss="soft_l1",
        f_scale=_LOSS_SCALE,
        x_scale=1.0,
    )
    return named(answer.x), named(_standard_errors(answer.jac, answer.fun))


def _standard_errors(jacobian: Floats, misses: Floats) -> Floats:
    freedom = max(len(misses) - jacobian.shape[1], 1)
    spread = 1.4826 * np.median(np.abs(misses))  # of a normal with this median
    scatter = spread**2 * len(misses) / freedom
    covariance = np.linalg.pinv(jacobian.T @ jacobian) * scatter
    variance = np.diag(covariance)
    return np.asarray(np.sqrt(np.where(variance >= 0, variance, np.inf)))


def _relative_error(
    predict: Callable[[Values], Floats],
    measured: Floats,
    values: Values,
    index: NDArray[np.int64],
) -> Floats:
    return np.abs(predict(values)[index] / measured[index] - 1.0)


def _rounded(value: np.floating | float) -> float:
    return round(float(value), 4)
