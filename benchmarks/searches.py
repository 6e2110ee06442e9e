"""What each search would have chosen, and what that costs.

    python benchmarks/searches.py [QUESTION …]

Each question is one argument, as on the command line: "--model gpt-13b --gpus 64". All
searches but the exhaustive one, which would simulate hundreds of thousands of layouts;
`slower` is against the default search's answer, which is proven.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from costmodel.options.pins import Pins
from planner.api import solve
from planner.problem.layout_text import short_words
from planner.problem.problem import Problem
from planner.problem.question import pose
from planner.problem.solution import Solution
from planner.search.registry import SEARCHES
from planner.search.search import AbstractSearch, Limits
from profiles.commandline.options import JobOptions
from profiles.errors import OutOfTime
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.units import format_seconds

QUESTIONS = (
    "--model gpt-13b --gpus 64",
    "--model llama3-70b --gpus 512 --cluster dgx-h100",
    "--model mixtral-8x7b --gpus 64",
)
LIMIT_S = 60.0


def posed(question: str) -> Problem:
    """The problem that the words of a question mean."""
    words = question.split()
    asked = dict(zip(words[::2], words[1::2], strict=True))
    where = asked.get("--cluster", "dgx-a100-80gb")
    wish = JobOptions(gpus=int(asked["--gpus"]))
    return pose(model(asked["--model"]), cluster(where), wish, Pins()).problem


def run(problem: Problem, search: AbstractSearch) -> Solution | None:
    """What *search* finds in the time that each of them has."""
    try:
        return solve(problem, search, Limits(time_limit_s=LIMIT_S, runners_up=0))
    except OutOfTime:
        return None


def main(questions: list[str]) -> None:
    for question in questions or QUESTIONS:
        problem = posed(question)
        print(f"plan {question}")
        print(f"{'search':17}{'step':>8}{'slower':>9}{'tried':>9}{'s':>7}  layout")
        best = 0.0
        for name, search in SEARCHES.items():
            if name == "exhaustive":
                continue
            found = run(problem, search)
            if found is None or found.best is None:
                print(f"{name:17}{'none':>8}")
                continue
            best = best or found.value
            step = format_seconds(found.best.estimate.step_time_s)
            words = short_words(found.best.choice, problem.job.global_batch)
            print(
                f"{name:17}{step:>8}{found.value / best - 1:9.1%}"
                f"{found.counters.simulated:9,}{found.seconds:7.1f}  {words}"
            )
        print()


if __name__ == "__main__":
    main(sys.argv[1:])
