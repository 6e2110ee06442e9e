"""What the scripts that fit rates share: how sure a number is, and how it prints."""

from __future__ import annotations

from benchmarks.fit.fitting import Fitted
from costmodel.machine.rates import Residual

# The error to expect of numbers that no table here could check.
PUBLISHED = Residual(median=0.1, p90=0.3, points=0)
BORROWED = Residual(median=0.15, p90=0.4, points=0)
GUESSED = Residual(median=0.3, p90=0.6, points=0)


def show(what: str, fit: Fitted) -> None:
    """Print a fit: residual (in brackets on unseen points), values, errors."""
    residual = fit.residual
    unseen = (
        f" [{residual.held_out_median:.1%}, {residual.held_out_p90:.1%}]"
        if residual.held_out_median is not None and residual.held_out_p90 is not None
        else ""
    )
    print(
        f"{what}: {residual.points} points, median {residual.median:.1%}, "
        f"p90 {residual.p90:.1%}{unseen}"
    )
    for name, value in fit.values.items():
        print(f"    {name:<18} {value:.4g} ± {fit.errors[name]:.2g}")
