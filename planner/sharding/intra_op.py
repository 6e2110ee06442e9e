"""One sharding for each operator of a block on a mesh, by integer program.

    block, mesh, micro-batch
      │  one loop an axis                   sharding_choices
    options of every operator
      │  local work, collectives            sharding_prices, resharding
    ChoiceGraph
      │  Alpa's integer program             choice_ilp
    ModuleShardings, with a proof

Only the operator graph goes in: that a product's columns are split and the next one's
rows, and that a layer has two all-reduces each way (Shoeybi et al., 2019) comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodel.layout import ModuleSharding, Placed
from costmodel.operators import module_sharding
from planner.sharding.choice_graph import Choice, ChoiceGraph, Chosen, Status
from planner.sharding.costs import (
    Measure,
    Options,
    Seconds,
    Traffic,
    choice_graph,
    edge_traffic,
    handover_traffic,
    moments,
    operator_options,
    own_traffic,
    readings,
)
from planner.sharding.ilp import TIME_LIMIT_S, solve_choice
from planner.sharding.problem import ENTRY, BlockProblem, entry_choices
from profiles.errors import Infeasible
from profiles.models import Operator
from profiles.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class BlockSharding:
    """A sharding of a block: seconds of a micro-batch, forward and backward, with its
    share of a step's gradient reduction; `lower` is what no other goes below.

    `traffic` is by operator: what it sends, and what is sent for its inputs.
    `peak_bytes` is the most that a rank holds while an operator runs.
    """

    status: Status
    value: float
    lower: float
    shardings: tuple[ModuleSharding, ...]
    loops: Mapping[str, Placed]
    traffic: Mapping[str, Traffic]
    peak_bytes: float

    @property
    def gap(self) -> float:
        """1 − lower / value: 0 is proven best."""
        return max(0.0, 1 - self.lower / self.value) if self.value else 0.0


@dataclass(frozen=True, kw_only=True)
class Posed:
    """A problem with its options priced."""

    problem: BlockProblem
    options: Options
    graph: ChoiceGraph


def pose(problem: BlockProblem, measure: Measure | None = None) -> Posed:
    """Price every option of *problem*, in seconds unless *measure* says otherwise."""
    used = measure or Seconds(problem)
    options = operator_options(problem, used)
    return Posed(
        problem=problem, options=options, graph=choice_graph(problem, options, used)
    )


def solve(
    problem: BlockProblem,
    *,
    time_limit_s: float = TIME_LIMIT_S,
) -> BlockSharding:
    """The fastest sharding of every operator, or the best that the time allows.

    Raises Infeasible where no sharding fits in the memory, or the solver found
    none in time.
    """
    posed = pose(problem)
    found = solve_choice(posed.graph, time_limit_s=time_limit_s)
    if not found.choice:
        raise _no_sharding(problem, found)
    return described(posed, found)


def described(posed: Posed, found: Chosen) -> BlockSharding:
    """A choice of a posed problem as shardings, traffic and bytes."""
    problem, choice = posed.problem, found.choice
    taken = {name: posed.options[name][choice[name]].choice for name in posed.options}
    entry = _entry_place(problem, choice)
    given = {
        target: [
            entry if source == ENTRY else taken[source].handed
            for source, its_target, _ in readings(problem)
            if its_target == target
        ]
        for target in taken
    }
    return BlockSharding(
        status=found.status,
        value=found.value,
        lower=found.lower,
        shardings=tuple(
            module_sharding(
                one,
                taken[one.name].loops,
                taken[one.name].handed,
                given[one.name],
                block=problem.block.name,
                axes=tuple(axis.name for axis in problem.axes),
            )
            for one in problem.block.operators
        ),
        loops={name: one.loops for name, one in taken.items()},
        traffic={
            one.name: _traffic(one, posed, choice, given[one.name], entry)
            for one in problem.block.operators
        },
        peak_bytes=peak_bytes(posed, choice),
    )


def peak_bytes(posed: Posed, choice: Choice) -> float:
    """The most that a rank holds while any operator runs."""
    return max(
        sum(float(uses[choice[name]]) for name, uses in one.uses.items())
        for one in moments(posed.problem, posed.options)
    )


def _entry_place(problem: BlockProblem, choice: Choice) -> Placed:
    entry = problem.block.entry
    return () if entry is None else entry_choices(entry, problem)[choice[ENTRY]]


def _traffic(
    operator: Operator,
    posed: Posed,
    choice: Choice,
    given: list[Placed],
    entry: Placed,
) -> Traffic:
    problem = posed.problem
    option = posed.options[operator.name][choice[operator.name]]
    total = own_traffic(operator, option.choice, option.trained, problem)
    for tensor, placed in zip(operator.inputs, given, strict=True):
        total += edge_traffic(tensor, placed, option.choice.loops, problem)
    if problem.loops and operator is problem.block.operators[-1]:
        handed = option.choice.handed
        total += handover_traffic(operator.output, handed, entry, problem)
    return total


def _no_sharding(problem: BlockProblem, found: Chosen) -> Infeasible:
    name = f"block {problem.block.name!r} on {_mesh_words(problem)}"
    if found.status is Status.INFEASIBLE and problem.memory_bytes is not None:
        return Infeasible(
            f"{name}: no sharding fits in {format_bytes(problem.memory_bytes)}; give "
            "more memory, more devices or a smaller micro-batch",
            constraint="memory",
            nearest=None,
        )
    return Infeasible(
        f"{name}: the solver found no sharding ({found.reason or found.status}); give "
        "it more time",
        constraint="time",
        nearest=None,
    )


def _mesh_words(problem: BlockProblem) -> str:
    return " × ".join(f"{axis.name} {axis.size}" for axis in problem.axes)
