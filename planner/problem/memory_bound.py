"""What a model takes on the fullest rank, however it is sharded.

    bytes     states of all parameters / GPUs                → states_bytes
              the largest weight / tensor parallelism        → widest_bytes
    room      whether all devices have as much               → states_fit
    search    over before it began, where that is too much   → hopeless

Each parameter is somewhere, and the fullest rank holds at least the mean; and who works
with a matrix or a table has all of its tensor-parallel part, gathered if it must be.
Replicas and activations come on top. So no layout needs less, and where either does not
fit, nothing has to be priced to know it.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import numpy as np

from costmodel.batched import Rows
from costmodel.layout import Columns, Uniform
from costmodel.operators import Degrees, parameters
from costmodel.stages import (
    WIDEST_WEIGHT,
    DataParallel,
    Memory,
    PeakContents,
    Process,
    StatePolicy,
    memory,
)
from planner.problem.problem import Problem
from planner.problem.regions import orders
from planner.problem.solution import Solution, hopeless_by_states
from planner.problem.space import Space
from profiles.hardware import precision
from profiles.models import Kind

_LEVELS = np.arange(4)  # ZeRO's; they differ in what a framework keeps of a parameter
_SHARDS = np.array([1, 1, 1, 2])  # two of ZeRO-3's are as good as any number


def states_bytes(problem: Problem) -> float:
    """Bytes that the peak of no layout of *problem* goes below."""
    held = _states(problem)
    return float(np.min(held.needed))


def widest_bytes(problem: Problem) -> float:
    """Those of the largest weight on a rank that works with it, in any layout: a part
    of it, where the framework sets a number of parameters that are whole at a time.
    Experts, which others split too, do not count."""
    job, policy = problem.job, precision(problem.precision)
    heads = max((one.heads for one in job.graph.kinds.values()), default=0)
    heads = 1 if job.graph.convolves else heads or problem.gpus
    limited = problem.machine.framework.footprint.live_parameters is not None
    ways = (problem.pins.tp or min(problem.gpus, heads)) * (
        WIDEST_WEIGHT if limited else 1
    )
    one_rank = np.asarray(1)
    whole = Degrees(
        tp=one_rank,
        cp=one_rank,
        micro_batch=one_rank,
        seq_len=job.seq_len,
        sequence_parallel=False,
    )
    found = [
        float(parameters(one, block, whole))
        * (policy.frozen_bytes if one.frozen else policy.parameter.bytes)
        for block, _ in job.graph.blocks
        for one in block.operators
        if one.kind is not Kind.GROUPED_MATMUL
    ]
    return max(found, default=0.0) / ways


def states_fit(problem: Problem) -> bool:
    """Whether all devices together have room for the states, and one for the largest
    weight."""
    parts = [place.problem(problem) for place in next(orders(problem))]
    room_bytes = sum(one.gpus * one.memory_limit_bytes for one in parts)
    largest = max(parts, key=lambda one: one.memory_limit_bytes)
    alike = replace(problem, machine=largest.machine)
    if widest_bytes(alike) > largest.memory_limit_bytes:
        return False
    return states_bytes(alike) <= room_bytes / problem.gpus


def too_large(problem: Problem) -> bool:
    """Whether its states or its largest weight alone are more than a device has."""
    least = max(widest_bytes(problem), states_bytes(problem))
    return least > problem.memory_limit_bytes


def hopeless(problem: Problem, search: str) -> Solution | None:
    """The answer where the states of every candidate, or its largest weight, are too
    large; else None."""
    began_s = perf_counter()
    if not too_large(problem):
        return None
    considered = int(Space.of(problem).trunks["leaves"].sum())
    seconds = perf_counter() - began_s
    return hopeless_by_states(search, seconds, considered=considered)


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
        PeakContents(
            parameters=whole.parameters * share,
            expert_parameters=whole.expert_parameters * share,
            frozen_parameters=whole.frozen_parameters * share,
            gathered_bytes=np.zeros(1),
            activation_bytes=np.zeros(1),
            transient_bytes=np.zeros(1),
        ),
        policy=StatePolicy(
            precision=rows.policy,
            moments=problem.job.moments,
            offload=problem.offload.of_states,
        ),
        process=Process(
            device=on.device,
            ranks=np.asarray(gpus),
            fully_shard=on.framework.fully_shard,
            footprint=replace(on.framework.footprint, bucket_elements=0),
        ),
        parallel=others,
    )
