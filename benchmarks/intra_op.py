"""How long one sharding for each operator of a block takes, and what it finds.

    python benchmarks/intra_op.py [MODEL …]

For each model's first layer and some meshes of dgx-a100-80gb: seconds to price all
options (`pose`), to solve Alpa's integer program, to eliminate instead, and Tofu's
recursion over as many ranks; the value of each, and what the operators are split along.
"""

from __future__ import annotations

import sys
from time import perf_counter

from costmodel.machine.assembly import machine
from costmodel.machine.topology import MeshAxis, mesh_axes
from planner.baselines.tofu import levelled, recursive
from planner.sharding.costs import SentBytes
from planner.sharding.elimination import eliminate
from planner.sharding.ilp import solve_choice
from planner.sharding.intra_op import pose
from planner.sharding.problem import BlockProblem
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.catalog import model
from profiles.models.job import Job

MODELS = ("gpt-125m", "gpt-13b", "gpt-175b", "llama3-8b", "llama3-70b")
MESHES = (
    (mesh_axes(tp=8), 1, 1),
    (mesh_axes(tp=8), 8, 1),
    (mesh_axes(dp=2, tp=8), 2, 64),
    (mesh_axes(dp=4, tp=4), 4, 16),
)
WAYS = (2, 4, 8)
SHOWN = ("qkv", "projection", "mlp_up", "mlp_down")


def problem_of(
    name: str, axes: tuple[MeshAxis, ...], sequences: int, micro_batches: int
) -> BlockProblem:
    found = model(name)
    job = Job(model=name, spec=found.spec, seq_len=2048, global_batch=sequences)
    return BlockProblem(
        block=job.graph.runs[0][0],
        axes=axes,
        sequences=sequences,
        seq_len=job.seq_len,
        machine=machine(cluster("dgx-a100-80gb")),
        precision=precision("bf16"),
        micro_batches=micro_batches,
    )


def solved(name: str) -> None:
    """A line for each mesh."""
    for axes, sequences, micro_batches in MESHES:
        problem = problem_of(name, axes, sequences, micro_batches)
        start = perf_counter()
        posed = pose(problem)
        priced = perf_counter()
        found = solve_choice(posed.graph)
        done = perf_counter()
        other = eliminate(posed.graph)
        after = perf_counter()
        mesh = " × ".join(f"{axis.name} {axis.size}" for axis in axes)
        loops = (
            "·".join(posed.options[one][found.choice[one]].choice.loops)
            for one in SHOWN
        )
        print(
            f"{name:12}{mesh:14}{sequences:4}{micro_batches:4}"
            f"{priced - start:7.2f}{done - priced:7.2f}{after - done:7.2f}"
            f"{found.value * 1e3:10.3f}{other.value * 1e3:10.3f}  {found.status:9}"
            f"{', '.join(loops)}"
        )


def halved(name: str) -> None:
    """A line for each number of ranks: bytes sent, by recursion and at best."""
    one = problem_of(name, mesh_axes(tp=1), sequences=8, micro_batches=1)
    for ways in WAYS:
        start = perf_counter()
        found = recursive(one, ways)
        done = perf_counter()
        best = eliminate(pose(levelled(one, ways), SentBytes()).graph)
        print(
            f"{name:12}{ways:4}{done - start:8.2f}{perf_counter() - done:8.2f}"
            f"{found.value / 1e6:12.3f}{best.value / 1e6:12.3f}"
        )


def main(names: list[str]) -> None:
    print(
        f"{'model':12}{'mesh':14}{'seq':>4}{'m':>4}{'pose':>7}{'ILP':>7}{'DP':>7}"
        f"{'ILP ms':>10}{'DP ms':>10}  {'status':9}loops of {', '.join(SHOWN)}"
    )
    for name in names or MODELS:
        solved(name)
    print(f"\n{'model':12}{'k':>4}{'Tofu s':>8}{'best s':>8}{'MB':>12}{'best MB':>12}")
    for name in names or MODELS:
        halved(name)


if __name__ == "__main__":
    main(sys.argv[1:])
