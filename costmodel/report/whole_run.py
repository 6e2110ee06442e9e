"""A whole training run in a few lines of a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.units import format_count, format_seconds


def training_rows(training: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What `costmodel.whole_run.training` found, as names and what they say."""
    rows = [
        ("training", _took(training)),
        ("compute", _compute_words(training["compute"])),
    ]
    if training["rampup"] is not None:
        rows.append(("batch ramp", _rampup_words(training["rampup"])))
    return tuple(rows)


def _took(training: Mapping[str, Any]) -> str:
    """Days, device-hours, dollars and energy in one line."""
    units = {
        "days": "days",
        "device_hours": "device-hours",
        "dollars": "dollars",
        "energy_kwh": "kWh at the devices' rated power",
    }
    steps = f"{_in_full(training['steps'])} steps"
    taken = (
        f"{_in_full(training[name])} {unit}"
        for name, unit in units.items()
        if training[name] is not None
    )
    return f"{format_count(training['tokens'])} tokens: {', '.join((steps, *taken))}"


def _compute_words(compute: Mapping[str, Any]) -> str:
    """Total FLOPs by both conventions."""
    return "; ".join(
        f"{one['flops']:.3g} FLOPs = {_rounded(one['pf_days'])} PF-days "
        f"({one['convention']})"
        for one in (compute["by_parameters"], compute["by_operators"])
    )


def _in_full(number: float) -> str:
    """A number without its fraction, three digits of a small one.

    >>> _in_full(4245777.3), _in_full(33.71), _in_full(0.00184)
    ('4,245,777', '33.7', '0.00184')
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _rounded(number: float) -> str:
    """Three digits of a number, large ones in full.

    >>> _rounded(3637.5), _rounded(2.604)
    ('3,640', '2.6')
    """
    digits = float(f"{number:.3g}")
    return f"{digits:,.0f}" if digits >= 100 else f"{digits:g}"


def _rampup_words(rampup: Mapping[str, Any]) -> str:
    """What rises, and what that costs."""
    first, last = rampup["batches"][0], rampup["batches"][-1]
    return (
        f"{rampup['start']:,} sequences a step, by {rampup['increment']:,} more, over "
        f"{format_count(rampup['samples'])} sequences: "
        f"{format_seconds(first['step_time_s'])} a step at first, "
        f"{format_seconds(last['step_time_s'])} at last; the run is "
        f"{rampup['added']:.1%} longer than with one batch"
    )
