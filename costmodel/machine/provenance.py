"""`Sourced`: seconds that know where they come from.

measured   a sample of exactly this operator or message
fitted     a curve through samples of its kind
roofline   the rest: the rates of the device and of its links
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from profiles.arrays import Array

_ZERO = np.zeros(())


def zero() -> Array:
    """0 s, shared by all that have none."""
    return _ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """Seconds, those of them that were measured and fitted, and how far off.

    `spread_s` is the standard deviation of the measured and fitted seconds.
    """

    seconds: Array
    measured_s: Array = field(default_factory=zero)
    fitted_s: Array = field(default_factory=zero)
    spread_s: Array = field(default_factory=zero)

    def __add__(self, other: Sourced) -> Sourced:
        return Sourced(
            seconds=self.seconds + other.seconds,
            measured_s=plus(self.measured_s, other.measured_s),
            fitted_s=plus(self.fitted_s, other.fitted_s),
            spread_s=plus(self.spread_s, other.spread_s),
        )

    def __mul__(self, factor: Any) -> Sourced:
        """So many times."""
        return self._scaled(self.seconds * factor, factor)

    def where(self, condition: Any) -> Sourced:
        """These seconds where *condition* holds, else none (even if not known)."""
        return Sourced(
            seconds=np.where(condition, self.seconds, 0.0),
            measured_s=kept(self.measured_s, condition),
            fitted_s=kept(self.fitted_s, condition),
            spread_s=kept(self.spread_s, condition),
        )

    def known_where(self, condition: Any) -> Sourced:
        """The same, but not known (NaN) where *condition* does not hold."""
        return replace(self, seconds=np.where(condition, self.seconds, np.nan))

    def unless_sampled(self, factor: Any) -> Sourced:
        """What neither was measured nor follows from samples so many times."""
        sampled_s = plus(self.measured_s, self.fitted_s)
        return replace(self, seconds=sampled_s + (self.seconds - sampled_s) * factor)

    def behind(self, hidden_s: Any) -> Sourced:
        """What is left of these seconds after the first *hidden_s* of them."""
        left = np.maximum(self.seconds - hidden_s, 0.0)
        return self._scaled(left, left / np.where(self.seconds > 0, self.seconds, 1.0))

    def or_else(self, roofline: Callable[[], Array]) -> Sourced:
        """*roofline* wherever the seconds are not known (NaN)."""
        unknown = np.isnan(self.seconds)
        if not unknown.any():
            return self
        return Sourced(
            seconds=np.where(unknown, roofline(), self.seconds),
            measured_s=np.where(unknown, 0.0, self.measured_s),
            fitted_s=np.where(unknown, 0.0, self.fitted_s),
            spread_s=np.where(unknown, 0.0, self.spread_s),
        )

    def _scaled(self, seconds: Array, factor: Any) -> Sourced:
        return Sourced(
            seconds=seconds,
            measured_s=times(self.measured_s, factor),
            fitted_s=times(self.fitted_s, factor),
            spread_s=times(self.spread_s, factor),
        )


def plus(one: Array, other: Array) -> Array:
    """The sum; adding `zero()` costs nothing."""
    if one is _ZERO:
        return other
    return one if other is _ZERO else one + other


def kept(value: Array, condition: Any) -> Array:
    """*value* where *condition* holds, else 0; `zero()` stays what it is."""
    return value if value is _ZERO else np.where(condition, value, 0.0)


def times(value: Array, factor: Any) -> Array:
    """The product; `zero()` stays what it is."""
    return value if value is _ZERO else value * factor


def known(seconds: Array, exact: Array, sigma: Array) -> Sourced:
    """Of *seconds*, those that are *exact* are measured and the rest fitted.

    *sigma* is relative. NaN seconds are unknown.

    >>> found = known(np.array([2.0, 4.0]), np.array([True, False]), np.array(0.1))
    >>> found.measured_s.tolist(), found.fitted_s.tolist()
    ([2.0, 0.0], [0.0, 4.0])
    """
    return Sourced(
        seconds=seconds,
        measured_s=np.where(exact, seconds, 0.0),
        fitted_s=np.where(exact, 0.0, seconds),
        spread_s=seconds * sigma,
    )
