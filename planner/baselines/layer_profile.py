"""`LayerProfile`: a layer as planners of pipelines see it, on one device of its own.

PipeDream and 2BW measure a model once, layer by layer, without tensor parallelism, and
plan from the table. Ours is priced by the same operators as every layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from costmodel.atoms import Atom, atom, block_prices
from costmodel.retention import KEEP_ALL, Retention, body_presets
from costmodel.sharding import Degrees, entry_bytes
from planner.problem import Problem
from profiles.graph import Block
from profiles.precision import Precision, precision
from profiles.units import MB

_TYPICAL_BYTES = 100 * MB  # large enough that latency does not count


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """A micro-batch through one layer, there and back.

    `activation_bytes` are handed to the next layer, `weight_bytes` exchanged between
    replicas. `saved_bytes` stay for the backward of each micro-batch in flight,
    `state_bytes` all the time.
    """

    seconds: float
    activation_bytes: float = 0.0
    weight_bytes: float = 0.0
    saved_bytes: float = 0.0
    state_bytes: float = 0.0


def layer_profiles(
    problem: Problem, micro_batch: int, recompute: str = "none"
) -> tuple[LayerProfile, ...]:
    """Every layer of the problem's model, in model order."""
    graph = problem.job.graph
    policy = precision(problem.precision, gradient=problem.gradient_format)
    body = body_presets(recompute, graph)
    made = {}
    for block in graph.distinct():
        kept = body.get(block.name, KEEP_ALL)
        made[block.name] = _profiled(problem, block, policy, micro_batch, kept)
    entries = [made[block.name][1] for block in graph.layers] + [0.0]
    return tuple(
        _layer(problem, made[block.name][0], policy, handed)
        for block, (_, handed) in zip(graph.layers, pairwise(entries), strict=True)
    )


def bytes_per_s(problem: Problem, *, far: bool) -> float:
    """Of a transfer between two devices, *far*: in unlike nodes."""
    seconds = problem.machine.send_s(np.array(_TYPICAL_BYTES), far=np.array(far))
    return _TYPICAL_BYTES / float(seconds)


def _profiled(
    problem: Problem,
    block: Block,
    policy: Precision,
    micro_batch: int,
    kept: Retention,
) -> tuple[Atom, float]:
    """One block's atom, and the bytes that it is entered with."""
    one = np.array(1)
    degrees = Degrees(
        tp=one,
        cp=one,
        ep=one,
        etp=one,
        micro_batch=np.array(micro_batch),
        imbalance=problem.machine.imbalance,
        seq_len=problem.job.seq_len,
        sequence_parallel=False,
        flash_attention=problem.flash_attention,
    )
    prices = block_prices(block, degrees, policy, problem.machine)
    entered = entry_bytes(block, degrees, policy)
    software = problem.machine.software
    found = atom(
        block,
        prices,
        kept,
        entered,
        stops_early=software.stops_early,
        floor=software.launch_floor,
    )
    return found, float(entered)


def _layer(
    problem: Problem, priced: Atom, policy: Precision, handed: float
) -> LayerProfile:
    trained = float(priced.parameters + priced.expert_parameters)
    seconds = priced.forward_s + priced.recompute_s + priced.backward_s
    return LayerProfile(
        seconds=float(seconds),
        activation_bytes=handed,
        weight_bytes=trained * policy.gradient.bytes,
        saved_bytes=float(priced.saved_bytes),
        state_bytes=trained * policy.state_bytes(problem.job.moments)
        + float(priced.frozen_parameters) * policy.frozen_bytes,
    )
