"""How fast columns are priced, and how far the simulation lies above them.

    python benchmarks/columns.py

Rows are drawn from the space of each question. Floors are those of whole branches:
what they add to a leaf's bound is the search's to pay.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from costmodel.options.pins import Pins
from planner.problem.problem import Problem
from planner.problem.question import pose
from planner.problem.space import Space
from planner.problem.table import length, take
from planner.search.bounds import floor_s, leaf_bounds, rough_s
from profiles.commandline.options import JobOptions
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model

ROWS = 100_000  # priced at once
SIMULATED = 150
Array = NDArray[Any]


class Question(NamedTuple):
    """What is planned."""

    model: str
    gpus: int
    cluster: str = "dgx-a100-80gb"


QUESTIONS = (
    Question("gpt-13b", 64),
    Question("gpt-13b", 64, "p3.16xlarge"),
    Question("llama3-70b", 64, "dgx-h100"),
    Question("gpt-175b", 1024),
)


def posed(question: Question) -> Problem:
    wish = JobOptions(gpus=question.gpus)
    where = cluster(question.cluster)
    return pose(model(question.model), where, wish, Pins()).problem


def quantiles(ratios: Array) -> str:
    low, tenth, median = np.quantile(ratios, [0.0, 0.1, 0.5])
    return f"{low:8.3f}{tenth:8.3f}{median:8.3f}"


def measure(question: Question) -> None:
    """One line: speeds, then bound / simulation of seconds and of bytes."""
    problem, random = posed(question), np.random.default_rng(0)
    space = Space(problem=problem)
    start = perf_counter()
    branches = space.branches
    listed_s = perf_counter() - start
    start = perf_counter()
    rough_s(problem, branches)
    glance_s = perf_counter() - start
    start = perf_counter()
    floor_s(problem, branches)
    floors_s = perf_counter() - start
    rows = random.permutation(length(branches))[: ROWS // 10]
    leaves = space.leaves(take(branches, rows))
    leaves = leaves.take(random.permutation(len(leaves))[:ROWS])
    start = perf_counter()
    bounds = leaf_bounds(problem, leaves)
    priced_s = perf_counter() - start
    seconds, peaks = [], []
    start = perf_counter()
    for row in range(SIMULATED):
        found = problem.simulate(space.choice(leaves, row)).estimate
        seconds.append(bounds.step_time_s[row] / found.step_time_s)
        peaks.append(bounds.needed_bytes[row] / found.peak_needed_bytes)
    each_s = (perf_counter() - start) / SIMULATED
    print(
        f"{length(branches):9,} {listed_s:6.2f} s{glance_s:6.2f} s{floors_s:6.2f} s"
        f"{len(leaves) / priced_s:10,.0f} /s{each_s * 1e3:7.1f} ms"
        f"{quantiles(np.array(seconds))}{quantiles(np.array(peaks))}"
        f"  {' '.join(map(str, question))}"
    )


if __name__ == "__main__":
    print(
        f"{'branches':>9} {'listed':>8}{'glance':>8}{'floors':>8}"
        f"{'columns':>13}{'simulate':>10}"
        f"{'seconds: least, p10, median':>24}{'bytes':>12}"
    )
    for one in QUESTIONS:
        measure(one)
