"""What the states of a model take on the fullest rank, however they are sharded.

    bytes     states of all parameters / GPUs                → states_bytes
    room      whether all devices have as much               → states_fit
    search    over before it began, where that is too much   → hopeless

Each parameter is somewhere, and the fullest rank holds at least the mean; replicas,
activations and what is gathered come on top. So no layout needs less, and where this
alone does not fit, nothing has to be priced to know it.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from time import perf_counter

import numpy as np

from costmodel.columns import Columns
from costmodel.data_parallel import DataParallel
from costmodel.memory import Memory, memory
from costmodel.rows import Rows
from costmodel.uniform import Uniform
from planner.problem import Problem
from planner.solution import Counters, Solution, Status
from planner.space import Space
from planner.stage_places import orders

_LEVELS = np.arange(4)  # ZeRO's; they differ in what a framework keeps of a parameter
_SHARDS = np.array([1, 1, 1, 2])  # two of ZeRO-3's are as good as any number


def states_bytes(problem: Problem) -> float:
    """Bytes that the peak of no layout of *problem* goes below."""
    held = _states(problem)
    return float(np.min(held.needed))


def states_fit(problem: Problem) -> bool:
    """Whether all devices together have room for that."""
    parts = [place.problem(problem) for place in next(orders(problem))]
    room_bytes = sum(one.gpus * one.memory_limit_bytes for one in parts)
    largest = max(parts, key=lambda one: one.memory_limit_bytes)
    alike = replace(problem, machine=largest.machine)
    return states_bytes(alike) <= room_bytes / problem.gpus


def hopeless(problem: Problem, search: str) -> Solution | None:
    """The answer where the states of every candidate are too large; else None."""
    began_s = perf_counter()
    if states_bytes(problem) <= problem.memory_limit_bytes:
        return None
    considered = int(Space.of(problem).branches["leaves"].sum())
    return Solution(
        search=search,
        status=Status.INFEASIBLE,
        best=None,
        value=inf,
        lower=inf,
        lower_step_time_s=0.0,
        complete=True,
        counters=Counters(considered=considered, simulated=0, by_memory=considered),
        seconds=perf_counter() - began_s,
    )


def _states(problem: Problem) -> Memory:
    """By ZeRO level, of a rank that holds its share of every parameter and no more."""
    alone = Uniform(
        precision=problem.precision,
        gradient_format=problem.gradient_format,
        flash_attention=problem.flash_attention,
        offload=problem.offload,
    )
    on, gpus = problem.machine, problem.gpus
    rows = Rows(columns=Columns.of([alone]), book=problem.book)
    whole = rows.held[0]  # of one stage, the first is all of the model
    one, share = np.ones_like(_LEVELS), _SHARDS / gpus
    # Others that have shards of their own: one rank has nobody to send gradients to.
    dp = -(-gpus // _SHARDS) * _SHARDS  # whole groups, of experts too
    others = DataParallel(tp=one, cp=one, dp=dp, zero=_LEVELS, zero_group=_SHARDS)
    return memory(
        parameters=whole.parameters * share,
        expert_parameters=whole.expert_parameters * share,
        frozen_parameters=whole.frozen_parameters * share,
        gathered_bytes=np.zeros(1),
        activation_bytes=np.zeros(1),
        transient_bytes=np.zeros(1),
        parallel=others,
        precision=rows.policy,
        moments=problem.job.moments,
        ranks=np.asarray(gpus),
        device=on.device,
        fully_shard=on.software.fully_shard,
        footprint=replace(on.software.footprint, bucket_elements=0),
        offload=problem.offload.of_states,
    )
