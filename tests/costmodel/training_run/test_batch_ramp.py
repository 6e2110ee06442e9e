"""A batch that grows: its steps, and what the run takes, by two ways of counting."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.strategy import Uniform
from costmodel.machine.assembly import Machine
from costmodel.options import RunOptions
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.training_run import BatchRamp, Ramped, ramped, training
from profiles.errors import Contradiction, InvalidSpec
from profiles.units import DAY_S
from tests.golden.priced import job_of, layout_of, machine_of, priced
from tests.support.rows import Obtained

MEGATRON = machine_of("megatron-lm")


def stepped(ramp: BatchRamp, global_batch: int, sequences: int) -> dict[int, float]:
    """Step by step, as a trainer asks before each step what its batch is."""
    rises = (global_batch - ramp.start) // ramp.increment
    seen, found = 0, dict[int, float]()
    while seen < sequences:
        risen = min(seen * rises // ramp.samples, rises)
        batch = ramp.start + risen * ramp.increment
        taken = min(batch, sequences - seen)
        found[batch] = found.get(batch, 0.0) + taken / batch
        seen += taken
    return found


@given(
    start=st.integers(1, 20),
    increment=st.integers(1, 20),
    rises=st.integers(1, 12),
    samples=st.integers(1, 600),
    sequences=st.integers(1, 900),
)
def test_steps_are_those_of_asking_before_each(
    start: int, increment: int, rises: int, samples: int, sequences: int
) -> None:
    ramp = BatchRamp(start=start, increment=increment, samples=samples)
    full = start + rises * increment
    found = ramp.steps(full, sequences)
    assert {batch: count for batch, count in found.items() if count} == pytest.approx(
        stepped(ramp, full, sequences)
    )
    assert sum(batch * count for batch, count in found.items()) == pytest.approx(
        sequences
    )


def run_of(
    name: str, batch: int, ramp: BatchRamp, sequences: float, **choice: Any
) -> tuple[Estimate, Ramped]:
    """A layout at the full *batch*, and a run with *ramp* by it."""
    found = priced(job_of(name, batch), MEGATRON, **choice)
    return found, ramped(found, MEGATRON, ramp, sequences * found.job.seq_len)


def step_s(found: Estimate, batch: int, on: Machine, **choice: Any) -> float:
    """A step of another batch, asked for on its own."""
    job = job_of(found.job.model, batch)
    return estimate(
        job, on.cluster, layout_of(job, Uniform(**choice)), on=on
    ).step_time_s


CHOICE: dict[str, Any] = {"tp": 2, "pp": 4, "dp": 8, "recompute": "full"}


@pytest.mark.row("J1", "a ramp's seconds over those in closed form", expected="1")
def test_the_integral_is_the_closed_form(obtained: Obtained) -> None:
    """Σ over batches of (samples / R) / batch × T(batch), where each batch divides its
    share of the samples: then no step is cut."""
    ramp = BatchRamp(start=8, increment=8, samples=3 * 48 * 100)
    found, run = run_of("gpt-2.7b", 32, ramp, 1e6, **CHOICE)
    share = ramp.samples / 3
    alone = {one: step_s(found, one, MEGATRON, zero=0, **CHOICE) for one in (8, 16, 24)}
    closed = sum(share / batch * seconds for batch, seconds in alone.items())
    closed += (1e6 - ramp.samples) / 32 * found.step_time_s
    obtained(f"{run.seconds / closed:.12g}")
    assert run.seconds == pytest.approx(closed, rel=1e-12)
    document = training(found, RunOptions(tokens=1e6 * found.job.seq_len), run)
    assert document["days"] == pytest.approx(closed / DAY_S, rel=1e-12)
    level = 1e6 / 32 * found.step_time_s
    assert document["rampup"]["added"] == pytest.approx(closed / level - 1)
    assert document["device_hours"] == pytest.approx(closed * 64 / 3600)


@given(
    pp=st.sampled_from((1, 2, 4)),
    start=st.integers(1, 4),
    increment=st.integers(1, 4),
    rises=st.integers(1, 5),
    samples=st.integers(1, 10**6),
)
def test_small_batches_never_hasten_a_run(
    pp: int, start: int, increment: int, rises: int, samples: int
) -> None:
    """What a step begins and ends with is shared by fewer sequences; and the integral
    is within a step of each batch of the closed form."""
    full, each = start + rises * increment, 8
    ramp = BatchRamp(start=start * each, increment=increment * each, samples=samples)
    choice = {"pp": pp, "dp": 8}
    found, run = run_of("gpt-125m", full * each, ramp, 2e6, **choice)
    assert (
        training(found, RunOptions(tokens=2e6 * 2048), run)["rampup"]["added"] >= -1e-12
    )
    share = samples / rises
    closed = (2e6 - samples) / (full * each) * found.step_time_s + sum(
        share
        / (each * (start + number * increment))
        * step_s(found, each * (start + number * increment), MEGATRON, zero=0, **choice)
        for number in range(rises)
    )
    assert abs(run.seconds - closed) <= (rises + 1) * found.step_time_s


def test_a_run_that_ends_on_the_ramp_knows_no_larger_batch() -> None:
    ramp = BatchRamp(start=8, increment=8, samples=2400)
    _, run = run_of("gpt-125m", 32, ramp, 1000, dp=8)
    assert run.steps == {8: 100.0, 16: pytest.approx(200 / 16)}


def test_sizes_of_micro_batches_stay() -> None:
    """Other batches are more or fewer of the same micro-batches."""
    ramp = BatchRamp(start=32, increment=32, samples=10**6)
    choice: dict[str, Any] = {"dp": 8, "micro_batch": 4}
    found, run = run_of("gpt-125m", 96, ramp, 2e6, **choice)
    alone = step_s(found, 32, MEGATRON, zero=0, **choice)
    assert run.step_time_s[32] == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((32, 8, 100), "start below it"),
        ((40, 8, 100), "start below it"),
        ((8, 7, 100), "choose a divisor of 24"),
        ((12, 4, 100), "a batch of 12, 20, 28 is not a multiple of 8"),
        ((4, 4, 100), "12, 20, …"),
    ],
)
def test_what_does_not_lead_to_the_batch_is_refused(
    numbers: tuple[int, int, int], said: str
) -> None:
    start, increment, samples = numbers
    ramp = BatchRamp(start=start, increment=increment, samples=samples)
    with pytest.raises(Contradiction, match=said.replace("…", ".*")):
        run_of("gpt-125m", 32, ramp, 1000, dp=8)


def test_a_batch_that_the_schedule_cannot_run_is_named() -> None:
    ramp = BatchRamp(start=8, increment=8, samples=1000)
    with pytest.raises(Contradiction, match=r"with a batch of 8 .*multiple of pp"):
        run_of(
            "gpt-125m", 32, ramp, 10_000,
            dp=8, pp=2, virtual_stages=2, schedule="interleaved",
        )  # fmt: skip


def test_ramps_that_nobody_could_wait_for_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="choose a larger increment"):
        BatchRamp(start=1, increment=1, samples=10).batches(10**6)
    with pytest.raises(InvalidSpec, match="passes to simulate"):
        run_of("gpt-125m", 9000, BatchRamp(start=1, increment=1, samples=9), 1e6)


def test_a_step_over_several_rises_leaves_them_out() -> None:
    ramp = BatchRamp(start=10, increment=10, samples=8)
    assert ramp.steps(50, 1010) == {10: 1.0, 50: 20.0}
    assert math.isclose(sum(ramp.steps(50, 5).values()), 0.5)
