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
from typing import Final

import numpy as np

from costmodel.layout import (
    AUTO,
    EVERYTHING,
    WHOLE,
    LayerPlan,
    Layout,
    ModuleSharding,
    Uniform,
)
from costmodel.layout import Stage as StagePlan
from costmodel.machine import Machine, mesh_axes
from costmodel.operators import Degrees
from costmodel.simulation import estimate
from costmodel.stages import Whole, block_prices, machines_of
from costmodel.support import refusals, violations
from planner.problem import (
    WORTHWHILE,
    Candidate,
    Objective,
    Operators,
    Problem,
    Proof,
    Solution,
    Staged,
)
from planner.problem import Status as SolutionStatus
from planner.search import Clock, Limits
from planner.sharding.choice_graph import Choice, Chosen, Status
from planner.sharding.costs import moments
from planner.sharding.elimination import eliminate
from planner.sharding.ilp import solve_choice
from planner.sharding.intra_op import Posed, described, peak_bytes, pose
from planner.sharding.problem import ENTRY, BlockProblem
from planner.sharding.report import preset, state_bytes
from profiles.errors import MeshwrightError
from profiles.models import Block, Job

TIME_LIMIT_S: Final = 10.0  # for one block
EXACT: Final = 1e-9
WORTH: Final = 1e-4  # of a block's seconds: less is not tried
MUCH: Final = 0.02  # of them: for more, smaller micro-batches are tried
LEANER: Final = 3  # of those


def with_own_shardings(
    problem: Problem,
    solution: Solution,
    clock: Clock | None = None,
) -> Solution:
    """*solution* with the proof of its operators' shardings, or with better ones, as
    far as the time of *clock* suffices.

    Where only memory is in the way of much faster ones, smaller micro-batches are tried
    too. Blocks of routed experts, context parallelism, gathers of 8 bits and stages on
    unlike devices keep their preset, and have no proof.
    """
    best = solution.best
    if best is None or problem.objective is Objective.MEMORY:
        return solution
    clock = clock or Clock(limits=Limits())
    looked = _looked(problem, best, clock)
    if not looked.proofs:
        return solution
    operators = Operators(proofs=looked.proofs)
    found = _replaced(problem, replace(solution, operators=operators), best, looked)
    for choice in _leaner(problem, best) if looked.free > MUCH else ():
        if clock.over:
            break
        candidate = problem.simulate(choice)
        if problem.fits(candidate):
            looked = _looked(problem, candidate, clock)
            found = _replaced(problem, found, candidate, looked)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """What is known of a layout's blocks: their proofs, the modules of layers that gain
    by them, and the share of a block's seconds that they gain if memory is no limit."""

    proofs: tuple[Proof, ...]
    modules: dict[str, tuple[ModuleSharding, ...]]
    free: float


def _looked(problem: Problem, candidate: Candidate, clock: Clock) -> _Looked:
    layout = candidate.estimate.layout
    room = _room_bytes(problem, candidate)
    known: dict[object, _Answer | None] = {}
    better: dict[str, tuple[ModuleSharding, ...]] = {}
    for name, block, stage, plan in _questions(problem, layout):
        on, *others = machines_of(problem.machine, [stage.mesh.ranks])
        if others:
            continue
        sequences = layout.micro_batch(stage)
        key = (id(on), block.name, stage.mesh.tp, sequences, plan.sharding)
        if key not in known:
            if clock.over:
                break
            posed = _posed(problem.job, on, layout, block, stage, plan)
            known[key] = _answer(posed, room, clock)
        answer = known[key]
        if answer is not None:
            proof = answer.proof
            if proof.best_s < proof.own_s * (1 - WORTH):
                better[name] = answer.modules
    answers = [one for one in known.values() if one is not None]
    return _Looked(
        proofs=tuple(one.proof for one in answers),
        modules=better,
        free=max((one.free for one in answers), default=0.0),
    )


def _leaner(problem: Problem, best: Candidate) -> Iterator[Uniform]:
    """The same layout with half as many sequences at a time, and so on."""
    pins, choice = problem.pins, best.choice
    if pins.micro_batch or pins.micro_batches or isinstance(best, Staged):
        return
    if choice.recompute == AUTO:
        choice = replace(choice, recompute="none", offload=choice.offload.of_states)
    for halvings in range(1, LEANER + 1):
        size, odd = divmod(choice.micro_batch, 2**halvings)
        if odd:
            return
        smaller = replace(choice, micro_batch=size)
        if not list(violations(smaller, problem.job, problem.machine.cluster)):
            yield smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    proof: Proof
    modules: tuple[ModuleSharding, ...]
    free: float


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
    job: Job,
    on: Machine,
    layout: Layout,
    block: Block,
    stage: StagePlan,
    plan: LayerPlan,
) -> Posed | None:
    """The block on the stage's tp axis, a replica's micro-batch at a time, between
    neighbours that the preset suits; None for routed experts, and where the preset's
    gathers travel in fewer bits than those of explicit shardings are priced in."""
    fewer = layout.precision.matmul.bytes < layout.precision.activation.bytes
    if fewer and on.framework.fp8.gathers:
        return None
    between = ("sequence" if plan.sharding == "megatron-sp" else WHOLE,)
    whole = EVERYTHING in plan.retention.recomputed
    last = block.operators[-1].name
    try:
        asked = BlockProblem(
            block=block,
            axes=mesh_axes(tp=stage.mesh.tp),
            sequences=layout.micro_batch(stage),
            seq_len=job.seq_len,
            machine=on,
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


def _answer(posed: Posed | None, room: float, clock: Clock) -> _Answer | None:
    """The best sharding in the preset's memory and *room*, as far as there is time;
    None where the preset is not among the choices."""
    if posed is None:
        return None
    split = posed.problem.decided[ENTRY][0] != (WHOLE,)
    own = preset(posed, sequence_parallel=split)
    if own is None:
        return None
    own_s = posed.graph.value(own)
    most = peak_bytes(posed, own) - _gathered_bytes(posed, own, split=split) + room
    found = unlimited = eliminate(posed.graph)
    free = max(0.0, 1 - found.value / own_s)
    if found.value < own_s * (1 - EXACT) and peak_bytes(posed, found.choice) > most:
        left_s = min(clock.left_s, TIME_LIMIT_S)
        late = replace(found, status=Status.FEASIBLE, choice=own, value=own_s)
        found = late if clock.over else _by_program(posed, most, left_s)
    if found.status is Status.INFEASIBLE or found.value >= own_s * (1 - EXACT):
        none_fits = found.status in (Status.INFEASIBLE, Status.OPTIMAL)
        found = Chosen(
            status=Status.OPTIMAL if none_fits else Status.FEASIBLE,
            choice=own,
            value=own_s,
            lower=own_s if none_fits else min(max(found.lower, unlimited.value), own_s),
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
        free=free,
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


def _by_program(posed: Posed, most_bytes: float, left_s: float) -> Chosen:
    limited = replace(posed.problem, memory_bytes=most_bytes)
    graph = replace(posed.graph, limits=moments(limited, posed.options))
    return solve_choice(graph, time_limit_s=left_s)


def _room_bytes(problem: Problem, candidate: Candidate) -> float:
    """What is left over on the fullest device, for each of a rank's layers."""
    found = candidate.estimate
    layers = max(problem.job.graph.body // found.layout.pp, 1)
    share = problem.memory_limit_bytes / problem.machine.device.capacity_bytes
    ranks = zip(found.memory, found.capacities_bytes, strict=True)
    left = min(share * most - float(item.secured) for item, most in ranks)
    return max(left, 0.0) / layers


def _replaced(
    problem: Problem, solution: Solution, beside: Candidate, looked: _Looked
) -> Solution:
    """*solution*, or *beside* with the modules of its layers that gain by them, if the
    simulation says that it is faster."""
    if not looked.modules:
        return solution
    layout = beside.estimate.layout.sharded(looked.modules)
    candidate = _judged(problem, beside, layout)
    if candidate is None or problem.value(candidate) >= solution.value * (1 - EXACT):
        return solution
    value, step_s = problem.value(candidate), candidate.estimate.step_time_s
    too_big, before = solution.too_big, solution.operators
    if too_big is not None and problem.value(too_big) >= value * WORTHWHILE:
        too_big = None
    if before is None or before.preset_value is None:
        before = Operators(
            proofs=(), preset_value=solution.value, preset_lower=solution.lower
        )
    return replace(
        solution,
        best=candidate,
        value=value,
        status=SolutionStatus.OPTIMAL if value <= solution.lower else solution.status,
        lower=min(solution.lower, value),
        lower_step_time_s=min(solution.lower_step_time_s, step_s),
        too_big=too_big,
        instead_of=None,
        operators=replace(before, proofs=looked.proofs),
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
