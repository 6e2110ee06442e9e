"""Whether a layout's layers are faster if their operators are split otherwise.

    distinct blocks on distinct meshes of the layout          → `_questions`
    one sharding an operator, proven best                     → `_answer`
    the layout with those that beat its preset, simulated     → `_judged`

The preset is one of the choices, in the memory that it takes and what the device has
left over. Layers are given and hand on what the preset says: which of them that is, the
search has settled. Without limits dynamic programming proves it in a millisecond
(`elimination`); where its answer is too large, Alpa's integer program does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from costmodel.atoms import Whole, block_prices
from costmodel.degrees import Degrees
from costmodel.estimate import estimate
from costmodel.layout import LayerPlan, Layout
from costmodel.layout import Stage as StagePlan
from costmodel.mesh_axes import mesh_axes
from costmodel.module_sharding import ModuleSharding
from costmodel.placements import WHOLE
from costmodel.retention import EVERYTHING
from costmodel.support import refusals
from planner.block_problem import ENTRY, BlockProblem
from planner.choice_cache import cached
from planner.choice_graph import Choice, Chosen, Status
from planner.choice_ilp import solve_choice
from planner.elimination import eliminate
from planner.intra_op import Posed, described, peak_bytes, pose
from planner.problem import Candidate, Objective, Problem, Staged
from planner.sharding_prices import moments
from planner.shardings import preset, state_bytes
from planner.solution import Operators, Proof, Solution
from profiles.errors import MeshwrightError
from profiles.graph import Block

TIME_LIMIT_S: Final = 10.0  # for one block
EXACT: Final = 1e-9
WORTH: Final = 1e-4  # of a block's seconds: less is not tried


def with_own_shardings(
    problem: Problem, solution: Solution, cache: Path | None = None
) -> Solution:
    """*solution* with the proof of its operators' shardings, or with better ones.

    Blocks of routed experts and context parallelism keep their preset, and have no
    proof. *cache* is a folder of solved programs (None: memory only).
    """
    if solution.best is None or problem.objective is Objective.MEMORY:
        return solution
    layout, proofs = solution.best.estimate.layout, {}
    better: dict[str, tuple[ModuleSharding, ...]] = {}
    known: dict[object, _Answer | None] = {}
    room = _room_bytes(problem, solution)
    for name, block, stage, plan in _questions(problem, layout):
        key = (block.name, stage.mesh.tp, layout.micro_batch(stage), plan.sharding)
        if key not in known:
            known[key] = _answer(
                _posed(problem, layout, block, stage, plan), room, cache
            )
        answer = known[key]
        if answer is not None:
            proofs[key] = answer.proof
            if answer.proof.best_s < answer.proof.own_s * (1 - WORTH):
                better[name] = answer.modules
    if not proofs:
        return solution
    found = replace(solution, operators=Operators(proofs=tuple(proofs.values())))
    return _replaced(problem, found, better) if better else found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    proof: Proof
    modules: tuple[ModuleSharding, ...]


def _questions(
    problem: Problem, layout: Layout
) -> Iterator[tuple[str, Block, StagePlan, LayerPlan]]:
    """Every numbered layer whose operators tensor parallelism splits by a preset."""
    blocks = problem.job.graph.layer_blocks
    for stage in layout.stages:
        if stage.mesh.tp > 1 and stage.mesh.cp == 1:
            for name, plan in zip(stage.layers, stage.plans, strict=True):
                if name.isdigit() and not plan.modules:
                    yield name, blocks[name], stage, plan


def _posed(
    problem: Problem, layout: Layout, block: Block, stage: StagePlan, plan: LayerPlan
) -> Posed | None:
    """The block on the stage's tp axis, a replica's micro-batch at a time, between
    neighbours that the preset suits; None for routed experts."""
    between = ("sequence" if plan.sharding == "megatron-sp" else WHOLE,)
    whole = EVERYTHING in plan.retention.recomputed
    last = block.operators[-1].name
    try:
        asked = BlockProblem(
            block=block,
            axes=mesh_axes(tp=stage.mesh.tp),
            sequences=layout.micro_batch(stage),
            seq_len=problem.job.seq_len,
            machine=problem.machine,
            precision=layout.precision,
            micro_batches=layout.micro_batches,
            flash_attention=layout.flash_attention,
            decided={ENTRY: (between, between), last: (between, between)},
            state_bytes=state_bytes(layout.precision, plan.zero, stage.mesh.dp_shard),
            in_flight=1 if whole else min(layout.pp, layout.micro_batches),
        )
    except MeshwrightError:
        return None
    return pose(asked)


def _answer(posed: Posed | None, room: float, cache: Path | None) -> _Answer | None:
    """The best sharding in the preset's memory and *room*; None where the preset is
    not among the choices."""
    if posed is None:
        return None
    split = posed.problem.decided[ENTRY][0] != (WHOLE,)
    own = preset(posed, sequence_parallel=split)
    if own is None:
        return None
    own_s = posed.graph.value(own)
    most = peak_bytes(posed, own) - _gathered_bytes(posed, own, split=split) + room
    found = eliminate(posed.graph)
    if found.value < own_s * (1 - EXACT) and peak_bytes(posed, found.choice) > most:
        found = _by_program(posed, most, cache)
    if found.status is Status.INFEASIBLE or found.value >= own_s * (1 - EXACT):
        none_fits = found.status in (Status.INFEASIBLE, Status.OPTIMAL)
        found = Chosen(
            status=Status.OPTIMAL if none_fits else Status.FEASIBLE,
            choice=own,
            value=own_s,
            lower=own_s if none_fits else min(found.lower, own_s),
        )
    best = described(posed, found)
    return _Answer(
        proof=Proof(
            block=posed.problem.block.name,
            tp=posed.problem.axes[0].size,
            sequences=posed.problem.sequences,
            status=best.status.value,
            own_s=own_s,
            best_s=best.value,
            lower_s=best.lower,
        ),
        modules=best.shardings,
    )


def _gathered_bytes(posed: Posed, own: Choice, *, split: bool) -> float:
    """What of the preset's sharding, said in explicit ones, is kept gathered, where the
    preset keeps a rank's part and gathers it once more (Korthikanti, 4.2.2)."""
    asked = posed.problem
    degrees = Degrees(
        tp=np.asarray(asked.axes[0].size),
        cp=np.asarray(1),
        micro_batch=np.asarray(asked.sequences),
        seq_len=asked.seq_len,
        sequence_parallel=split,
        flash_attention=asked.flash_attention,
    )
    prices = block_prices(asked.block, degrees, asked.precision, asked.machine)
    kept = sum(float(size) for size in Whole.of(prices).tensors.values())
    said = sum(mine[own[name]].kept_bytes for name, mine in posed.options.items())
    return asked.in_flight * max(said - kept, 0.0)


def _by_program(posed: Posed, most_bytes: float, cache: Path | None) -> Chosen:
    limited = replace(posed.problem, memory_bytes=most_bytes)
    graph = replace(posed.graph, limits=moments(limited, posed.options))
    return cached(
        graph, lambda one: solve_choice(one, time_limit_s=TIME_LIMIT_S), cache
    )


def _room_bytes(problem: Problem, solution: Solution) -> float:
    """What is left over on the fullest device, for each of a rank's layers."""
    assert solution.best is not None
    found = solution.best.estimate
    layers = max(problem.job.graph.body // found.layout.pp, 1)
    return max(problem.memory_limit_bytes - found.peak_memory_bytes, 0.0) / layers


def _replaced(
    problem: Problem,
    solution: Solution,
    modules: dict[str, tuple[ModuleSharding, ...]],
) -> Solution:
    """*solution* with these *modules*, if the simulation says that it is faster."""
    before, operators = solution.best, solution.operators
    assert before is not None
    assert operators is not None
    layout = before.estimate.layout.sharded(modules)
    candidate = _judged(problem, before, layout)
    if candidate is None or problem.value(candidate) >= solution.value * (1 - EXACT):
        return solution
    value = problem.value(candidate)
    return replace(
        solution,
        best=candidate,
        value=value,
        lower=min(solution.lower, value),
        lower_step_time_s=min(
            solution.lower_step_time_s, candidate.estimate.step_time_s
        ),
        operators=replace(
            operators, preset_value=solution.value, preset_lower=solution.lower
        ),
    )


def _judged(problem: Problem, before: Candidate, layout: Layout) -> Staged | None:
    """*layout* simulated; None if it is refused or does not fit."""
    try:
        if problem.executable and refusals(layout, problem.job):
            return None
        found = estimate(
            problem.job, problem.machine.cluster, layout, on=problem.machine
        )
    except MeshwrightError:
        return None
    candidate = Staged(choice=before.choice, estimate=found)
    return candidate if problem.fits(candidate) else None
