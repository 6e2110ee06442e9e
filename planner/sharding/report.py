"""The operators of a recommended layout's block: how it shards them, and how best.

The mesh is the layout's, dp × cp × tp of one stage; the memory that of the layout's own
sharding, which is one of the choices. So the answer is never slower, and how much it is
faster says what the preset leaves lying.

Each operator's sharding for a terminal: what is split where, and what is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from costmodel.layout import PARTIAL, WHOLE, Placed, Uniform, sharding_documents
from costmodel.machine import mesh_axes
from costmodel.operators import ON_TP, Step, dimension, made, splittable
from planner.problem import Problem
from planner.search import Clock, Limits
from planner.sharding.choice_graph import Status
from planner.sharding.ilp import TIME_LIMIT_S
from planner.sharding.intra_op import BlockSharding, Posed, peak_bytes, pose, solve
from planner.sharding.problem import ENTRY, BlockProblem, entry_choices
from profiles.hardware import Precision, precision
from profiles.models import Operator
from profiles.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group

MOST_AXES = 2  # a third axis takes the program from seconds to a minute
_PLANES = frozenset(map(dimension, ON_TP))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutShardings:
    """The best sharding of a layout's block, and what the layout's own costs: None
    where it cannot be said in loops (context parallelism)."""

    problem: BlockProblem
    best: BlockSharding
    own_s: float | None
    own_bytes: float | None


def layout_shardings(
    problem: Problem,
    choice: Uniform,
    clock: Clock | None = None,
) -> LayoutShardings:
    """Shard the first numbered layer of the job for the layout *choice*, in the time
    that *clock* has left.

    Raises Unsupported for a layer of routed experts, OutOfTime where none is left, and
    Infeasible where it did not suffice.
    """
    clock = clock or Clock(limits=Limits())
    clock.require()
    asked = layout_block(problem, choice)
    posed = pose(asked)
    clock.require()
    left_s = min(clock.left_s, TIME_LIMIT_S)
    own = preset(posed, sequence_parallel=choice.sequence_parallel)
    if own is None or choice.cp > 1:
        return LayoutShardings(
            problem=asked,
            best=solve(asked, time_limit_s=left_s),
            own_s=None,
            own_bytes=None,
        )
    held = peak_bytes(posed, own)
    limited = replace(asked, memory_bytes=held)
    return LayoutShardings(
        problem=limited,
        best=solve(limited, time_limit_s=left_s),
        own_s=posed.graph.value(own),
        own_bytes=held,
    )


def layout_block(problem: Problem, choice: Uniform) -> BlockProblem:
    """The first numbered layer on the mesh of a stage; one data-parallel replica's
    where the mesh would have more than `MOST_AXES` axes."""
    degrees = {"dp": choice.dp, "cp": choice.cp, "tp": choice.tp}
    mesh = {name: size for name, size in degrees.items() if size > 1} or {"tp": 1}
    if len(mesh) > MOST_AXES:
        del mesh["dp"]
    count = choice.micro_batches(problem.job.global_batch)
    kept_in = precision(choice.precision, gradient=choice.gradient_format)
    kept = 1 if choice.recompute == "full" else min(choice.pp, count)
    return BlockProblem(
        block=problem.job.graph.runs[0][0],
        axes=mesh_axes(**mesh),
        sequences=choice.micro_batch * mesh.get("dp", 1),
        seq_len=problem.job.seq_len,
        machine=problem.machine,
        precision=kept_in,
        micro_batches=count,
        flash_attention=choice.flash_attention,
        state_bytes=state_bytes(kept_in, choice.zero, choice.zero_group),
        in_flight=kept,
    )


def preset(posed: Posed, *, sequence_parallel: bool) -> dict[str, int] | None:
    """Megatron's sharding as a choice of the program's options; None if something
    does not divide. Rows are split over dp, heads and widths over tp, and what has
    none along the sequence, if that is asked for."""
    between = "sequence" if sequence_parallel else WHOLE
    problem = posed.problem
    found: dict[str, int] = {}
    for operator in problem.block.operators:
        loops = _along(problem, _plane(operator) or between)
        handed = _settled(made(operator, loops), between)
        taken = [
            index
            for index, one in enumerate(posed.options[operator.name])
            if (one.choice.loops, one.choice.handed) == (loops, handed)
        ]
        if not taken:
            return None
        found[operator.name] = taken[0]
    if problem.block.entry is not None:
        places = entry_choices(problem.block.entry, problem)
        place = _along(problem, between)
        if place not in places:
            return None
        found[ENTRY] = places.index(place)
    return found


def shardings_document(found: LayoutShardings) -> dict[str, Any]:
    """What `plan --json --shardings` adds."""
    best, problem = found.best, found.problem
    return {
        "block": problem.block.name,
        "mesh": {axis.name: axis.size for axis in problem.axes},
        "status": best.status.value,
        "micro_batch_s": best.value,
        "lower_s": best.lower,
        "peak_bytes": best.peak_bytes,
        "own_micro_batch_s": found.own_s,
        "own_peak_bytes": found.own_bytes,
        "modules": sharding_documents(best.shardings),
    }


def _plane(operator: Operator) -> str | None:
    """The loop that tensor parallelism splits of an operator, if it has one."""
    return next((one for one in splittable(operator) if one in _PLANES), None)


def _along(problem: BlockProblem, over_tp: str) -> Placed:
    words = {"dp": "batch", "cp": "sequence", "tp": over_tp}
    return tuple(words[axis.name] if axis.size > 1 else WHOLE for axis in problem.axes)


def _settled(placed: Placed, between: str) -> Placed:
    return tuple(between if word == PARTIAL else word for word in placed)


def state_bytes(kept: Precision, zero: int, shards: int) -> float:
    """Bytes a rank holds for each parameter of its own, ZeRO's shards taken off."""
    states = (
        (3, kept.parameter.bytes),
        (2, kept.gradient_bytes),
        (1, kept.state_bytes() - kept.parameter.bytes - kept.gradient_bytes),
    )
    return sum(size / (shards if zero >= level else 1) for level, size in states)


def shardings_view(found: LayoutShardings) -> Group:
    """A table with a line for each operator, under what it costs and how sure it is."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), header_style="bold", show_edge=False)
    table.add_column("operator", no_wrap=True)
    for axis in found.problem.axes:
        table.add_column(f"over {axis.name} {axis.size}", no_wrap=True)
    for name in ("forward", "backward", "once a step"):
        table.add_column(name, overflow="fold")
    for name, loops in found.best.loops.items():
        sent = found.best.traffic[name]
        passes = (sent.forward, sent.backward, sent.step)
        table.add_row(name, *loops, *(sent_words(steps) for steps in passes))
    return Group(Text(headline(found)), table)


def headline(found: LayoutShardings) -> str:
    """Seconds and bytes of the block, the proof, and what the layout's own costs."""
    best, problem = found.best, found.problem
    mesh = " × ".join(f"{axis.name} {axis.size}" for axis in problem.axes)
    proof = (
        "optimal" if best.status is Status.OPTIMAL else f"within {best.gap:.1%} of best"
    )
    words = (
        f"operators of {problem.block.name!r} on {mesh}, by integer program ({proof}): "
        f"{format_seconds(best.value)} a micro-batch in {format_bytes(best.peak_bytes)}"
    )
    if found.own_s is None or found.own_bytes is None:
        return words
    own = f"{format_seconds(found.own_s)} in {format_bytes(found.own_bytes)}"
    return f"{words}; the layout's own sharding: {own}"


def sent_words(steps: Iterable[Step]) -> str:
    """Collectives in words.

    >>> from costmodel.machine.topology import MeshAxis
    >>> tp = MeshAxis(name="tp", size=8)
    >>> sent_words([Step(kind="all_reduce", axis=tp, size_bytes=2.0**21)])
    'all-reduce tp 2.00 MiB'
    """
    return ", ".join(
        f"{one.kind.replace('_', '-')} {one.axis.name} {format_bytes(one.size_bytes)}"
        for one in steps
    )
