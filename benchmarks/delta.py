"""What delta simulation saves: CPU time of edits simulated anew, and by what is known.

    python benchmarks/delta.py

A walk from Megatron's answer, as the search `mcmc` takes it; half of what it proposes
is accepted. Steps of many passes are left out: their schedule takes longer than prices.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from time import process_time

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from costmodel.layout.strategy import Uniform
from costmodel.options.pins import Pins
from costmodel.stages.block_batch import Known
from planner.baselines.mcmc import Edits
from planner.baselines.recipes import Megatron
from planner.problem.problem import Problem
from planner.problem.question import pose
from planner.problem.space import Space
from planner.search.search import Limits
from profiles.commandline.options import JobOptions
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.units import MS

MODELS = ("gpt-13b", "mixtral-8x7b")
EDITS, MOST_PASSES, ACCEPTED = 150, 6_000, 0.5


def walk(problem: Problem) -> list[Uniform]:
    """Distinct candidates, each an edit of one before it."""
    edits, draw = Edits(space=Space(problem=problem)), Random(0)
    start = Megatron().solve(problem, Limits(runners_up=0)).best
    assert start is not None, "something fits"
    here, found = start.choice, dict[Uniform, None]()
    while len(found) < EDITS:
        there = edits.edited(here, draw)
        if there is None or there in found or passes(problem, there) > MOST_PASSES:
            continue
        found[there] = None
        here = there if draw.random() < ACCEPTED else here
    return list(found)


def passes(problem: Problem, choice: Uniform) -> int:
    """Forwards and backwards of a step."""
    batches = choice.micro_batches(problem.job.global_batch)
    return 2 * choice.pp * choice.virtual_stages * batches


def main() -> None:
    where = cluster("dgx-a100-80gb")
    print(f"{'':14}{'anew':>9}{'delta':>9}  (ms of one edit, 64 GPUs)")
    for name in MODELS:
        problem = pose(model(name), where, JobOptions(gpus=64), Pins()).problem
        known, spent = Known(), [0.0, 0.0]
        for choice in walk(problem):
            for place, memory in enumerate((None, known)):
                start = process_time()
                problem.simulate(choice, memory)
                spent[place] += process_time() - start
        words = (f"{one / EDITS / MS:9.1f}" for one in spent)
        print(f"{name:14}{''.join(words)}")


if __name__ == "__main__":
    main()
