"""What a whole run takes, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from profiles.units import DAY_S, format_bytes, format_count, format_seconds

Rows = tuple[tuple[str, str], ...]
_UNITS = {
    "device_hours": "device-hours",
    "dollars": "dollars",
    "energy_kwh": "kWh",
    "co2_kg": "kg CO2",
}


def training_rows(training: Mapping[str, Any]) -> Rows:
    """What `training` found, as names and what they say."""
    return tuple(_rows(training))


def _rows(training: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "training", _took(training)
    yield "compute", _compute(training["compute"])
    if training["rampup"] is not None:
        yield "batch ramp", _rampup(training["rampup"])
    if training["evaluation"] is not None:
        yield "evaluation", _evaluation(training["evaluation"])
    if training["jitter"] is not None:
        yield "stragglers", _jitter(training["jitter"])
    if training["failures"] is not None:
        yield from _failures(training["failures"])
    if training["assumed"] and training["energy_kwh"] is not None:
        names = {"pue": "PUE {:g}", "carbon_g_per_kwh": "{:g} g CO2 a kWh"}
        taken = (names[key].format(one) for key, one in training["assumed"].items())
        yield "energy", f"rated power; {', '.join(taken)} assumed"


def _took(training: Mapping[str, Any]) -> str:
    """Days, device-hours, dollars and energy in one line."""
    taken = [f"{_in_full(training[name])} {name}" for name in ("steps", "days")]
    tokens = format_count(training["tokens"])
    return f"{tokens} {training['unit']}: {', '.join(taken + _costs(training))}"


def _costs(whole: Mapping[str, Any]) -> list[str]:
    return [
        f"{_in_full(whole[name])} {unit}"
        for name, unit in _UNITS.items()
        if whole[name] is not None
    ]


def _failures(failures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How many are to be expected, what they add, and the ways back."""
    mtbf = f"one in {_in_full(failures['mtbf_h'])} h"
    if failures["days"] is None:
        yield "failures", f"{mtbf}: they leave no time to train"
        return
    every = f"every {format_seconds(failures['interval_s'])}"
    if failures["interval_s"] >= failures["days"] * failures["goodput"] * DAY_S:
        every = "at the end"
    lost = (
        f"{mtbf}, {_in_full(failures['expected'])} in the run: "
        f"{_in_full(failures['days'])} days with them, goodput "
        f"{failures['goodput']:.1%} with a checkpoint of "
        f"{format_seconds(failures['checkpoint_s'])} {every}"
    )
    yield "failures", f"{lost}; {', '.join(_costs(failures))}"
    yield "recovery", _recovery(failures)
    if failures["spares"] is not None:
        yield "spare nodes", _spares(failures["spares"])
    if failures["monte_carlo"] is not None:
        yield "drawn", _drawn(failures["monte_carlo"])


def _recovery(failures: Mapping[str, Any]) -> str:
    """The way back that is taken, and what the others lose."""
    words = list[str]()
    for row in failures["recoveries"]:
        if row["recovery"] == failures["recovery"]:
            kept = row["log"]
            stored = (
                f", {format_bytes(kept['bytes_per_node'])} of log a node"
                if kept
                else ""
            )
            words.insert(0, f"{row['recovery']} ({row['goodput']:.1%}{stored})")
        elif row["impossible"] is not None:
            words.append(f"not {row['recovery']}: {row['impossible']}")
        else:
            words.append(f"{row['recovery']} {row['goodput']:.1%}")
    return "; ".join(words)


def _spares(spares: Mapping[str, Any]) -> str:
    """How often all nodes are there, and what happens else."""
    return (
        f"{spares['nodes']}, back {spares['repair_h']:g} h after a failure: all nodes "
        f"at work {spares['whole_share']:.2%} of the time; without a spare, "
        + ("fewer nodes" if spares["without_a_spare"] == "re-plan" else "the job waits")
    )


def _drawn(drawn: Mapping[str, Any]) -> str:
    low, high = drawn["goodput_interval"]
    days = drawn["days"]
    return (
        f"{drawn['runs']:,} runs: goodput {drawn['goodput']:.2%} ({low:.2%} to "
        f"{high:.2%}), {_in_full(days['p10'])} to {_in_full(days['p90'])} days"
    )


def _evaluation(one: Mapping[str, Any]) -> str:
    return (
        f"{one['evaluations']:,} times {one['iters']:,} batches of "
        f"{format_seconds(one['step_time_s'])}: {_in_full(one['days'])} days"
    )


def _jitter(one: Mapping[str, Any]) -> str:
    return (
        f"{one['sigma']:.1%} of a rank's work, the slowest of {one['ranks']:,}: "
        f"{one['added']:.1%} longer steps, {format_seconds(one['step_time_s']['p50'])} "
        f"half the time, 99 % below {format_seconds(one['step_time_s']['p99'])}"
    )


def _compute(compute: Mapping[str, Any]) -> str:
    """Total FLOPs by both conventions."""
    return "; ".join(
        f"{one['flops']:.3g} FLOPs = {_rounded(one['pf_days'])} PF-days "
        f"({one['convention']})"
        for one in (compute["by_parameters"], compute["by_operators"])
        if one is not None
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


def _rampup(rampup: Mapping[str, Any]) -> str:
    """What rises, and what that costs."""
    first, last = rampup["batches"][0], rampup["batches"][-1]
    return (
        f"{rampup['start']:,} sequences a step, by {rampup['increment']:,} more, over "
        f"{format_count(rampup['samples'])} sequences: "
        f"{format_seconds(first['step_time_s'])} a step at first, "
        f"{format_seconds(last['step_time_s'])} at last; the run is "
        f"{rampup['added']:.1%} longer than with one batch"
    )
