"""How fast the timeline is, and how tight its bound.

    python benchmarks/timeline.py

Cold figures are those of a fresh process and leave out importing NumPy; warm figures
are the best of several calls with the schedule's program cached.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from costmodel.batched.makespan import Runs, makespan_bound_s
from costmodel.schedule.program import program_of
from costmodel.timeline.costs import FloatArray, StageCosts
from costmodel.timeline.timeline import simulate
from tests.oracles.event_sim import simulate_on_clock


class Pipeline(NamedTuple):
    """What is simulated."""

    schedule: str
    pp: int
    virtual_stages: int
    micro_batches: int


LARGEST = Pipeline("interleaved", 32, 2, 512)
PIPELINES = (
    Pipeline("1f1b", 1, 1, 512),
    Pipeline("1f1b", 4, 1, 16),
    Pipeline("1f1b", 8, 1, 64),
    Pipeline("1f1b", 8, 1, 256),
    Pipeline("interleaved", 8, 2, 256),
    Pipeline("gpipe", 32, 1, 512),
    Pipeline("1f1b", 64, 1, 512),
    LARGEST,
)
FAST_ENOUGH = 200_000  # candidates at once
CASES = 1000


def costs_of(pipeline: Pipeline, random: np.random.Generator) -> StageCosts:
    """End stages up to 20 % off the others and transfers up to 5 % of a stage."""
    pp, stages = pipeline.pp, pipeline.pp * pipeline.virtual_stages
    forward_s = np.ones(stages)
    forward_s[[0, -1]] *= random.uniform(0.8, 1.2, 2)
    transfer_s = np.full(stages, 3 * random.uniform(0, 0.05))
    some = random.uniform(0, 1, stages)
    return StageCosts(
        forward_s=forward_s,
        backward_s=2 * forward_s,
        send_forward_s=transfer_s,
        send_backward_s=transfer_s,
        saved_bytes=some,
        transient_forward_bytes=some,
        transient_backward_bytes=some,
        reduce_s=some,
        step_s=some[:pp],
        gather_s=some[:pp],
        weight_s=some,
        weight_bytes=some,
        hidden_s=some,
        buckets=4,
    )


def best_s(call: Callable[[], object], repeats: int = 20) -> float:
    """The shortest of several calls."""
    times = []
    for _ in range(repeats):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)


def cold() -> None:
    """One simulation of the largest pipeline, its program built on the way."""
    costs = costs_of(LARGEST, np.random.default_rng(0))
    start = perf_counter()
    simulate(*LARGEST, costs)
    print(f"{(perf_counter() - start) * 1e3:.1f}")


def print_cold() -> None:
    command = [sys.executable, __file__, "--cold"]
    runs = [
        float(subprocess.run(command, capture_output=True, check=True).stdout)
        for _ in range(5)
    ]
    print(f"cold, {' '.join(map(str, LARGEST))}: {min(runs)} to {max(runs)} ms\n")


def print_speeds() -> None:
    print(f"{'pipeline':32}{'passes':>8}{'build':>10}{'simulate':>10}{'clock':>11}")
    random = np.random.default_rng(0)
    for pipeline in PIPELINES:
        costs = costs_of(pipeline, random)
        build_s = best_s(partial(program_of.__wrapped__, *pipeline), 1)
        warm_s = best_s(partial(simulate, *pipeline, costs))
        passes = program_of(*pipeline).rows.size
        clock = ""
        if passes <= 10_000:
            slow_s = best_s(partial(simulate_on_clock, *pipeline, costs), 2)
            clock = f"{slow_s * 1e3:.1f} ms"
        name = " ".join(map(str, pipeline))
        print(
            f"{name:32}{passes:8}{build_s * 1e3:7.2f} ms{warm_s * 1e3:7.3f} ms"
            f"{clock:>11}"
        )


def cases(schedule: str, random: np.random.Generator) -> Iterator[Pipeline]:
    """Up to 64 ranks and 512 micro-batches, evenly over their logarithms."""
    woven = schedule == "interleaved"
    for _ in range(CASES // 3):
        pp = int(np.exp(random.uniform(np.log(1 + woven), np.log(64.99))))
        m = int(np.exp(random.uniform(0, np.log(512.99))))
        if woven:
            m = max(m // pp, 1) * pp
        chunks = int(random.integers(2, 5)) if woven else 1
        yield Pipeline(schedule, pp, chunks, m)


def gap(pipeline: Pipeline, costs: StageCosts) -> float:
    """By how much the simulated makespan exceeds its bound, relative."""
    schedule, _, chunks, m = pipeline
    stages = pipeline.pp * chunks
    last, middle = int(stages > 1), max(stages - 2, 0)
    forward, backward = (
        tuple(np.array([side[i]]) for i in (0, min(1, stages - 1), -1))
        for side in (costs.forward_s, costs.backward_s)
    )
    runs = Runs(
        counts=(np.array([1]), np.array([middle]), np.array([last])),
        forward_s=forward,
        backward_s=backward,
        transfer_s=np.array([costs.send_forward_s.min()]),
    )
    bound_s = makespan_bound_s(
        schedule,
        runs,
        virtual_stages=np.array([chunks]),
        micro_batches=np.array([m]),
    )[0]
    makespan_s = simulate(*pipeline, costs).compute_end_s.max()
    return float(makespan_s / bound_s) - 1


def print_tightness() -> None:
    print(f"\n{'bound':16}{'median':>10}{'p90':>10}{'worst':>10}{'within 1 %':>12}")
    random, every = np.random.default_rng(0), list[float]()
    for schedule in ("gpipe", "1f1b", "interleaved"):
        found = [gap(one, costs_of(one, random)) for one in cases(schedule, random)]
        print_gaps(schedule, np.array(found))
        every += found
    print_gaps("all", np.array(every))


def print_gaps(name: str, gaps: FloatArray) -> None:
    median, high = np.quantile(gaps, [0.5, 0.9])
    within = np.mean(gaps < 0.01)
    print(f"{name:16}{median:10.1e}{high:10.1e}{gaps.max():10.1e}{within:12.1%}")


def print_bound_speeds() -> None:
    random = np.random.default_rng(0)
    pp = random.integers(2, 65, FAST_ENOUGH)
    chunks = random.integers(2, 5, FAST_ENOUGH)
    print(f"\nbounds of {FAST_ENOUGH} candidates at once")
    for schedule in ("gpipe", "1f1b", "interleaved"):
        v = chunks if schedule == "interleaved" else np.ones_like(pp)
        times = [random.uniform(0.8, 1.2, FAST_ENOUGH) for _ in range(4)]
        middle = pp * v - 2
        low = middle // 2
        one = np.ones_like(pp)
        runs = Runs(
            counts=(one, low, middle - low, one),
            forward_s=tuple(times),
            backward_s=tuple(2 * time for time in times),
            transfer_s=random.uniform(0, 0.15, FAST_ENOUGH),
        )
        m = pp * random.integers(1, 9, FAST_ENOUGH)
        bound = partial(makespan_bound_s, schedule, runs)
        took_s = best_s(partial(bound, virtual_stages=v, micro_batches=m), 3)
        print(f"{schedule:16}{FAST_ENOUGH / took_s:12,.0f} a second")


if __name__ == "__main__":
    if "--cold" in sys.argv[1:]:
        cold()
    else:
        print_cold()
        print_speeds()
        print_tightness()
        print_bound_speeds()
