"""What shardings of a block cost: the `ChoiceGraph` of a `BlockProblem`.

option of an operator    its local work, forward and backward, its collectives, and
                         its share of a step's gradient reduction
pair on an edge          the tensor's redistribution, and its gradient's
limit at an operator     parameters, what is kept until then, what is at work

What a chosen sharding communicates: inside an operator, and on an edge.

forward    made → handed, once a tensor;   handed → wanted, once a reader
backward   the gradient the other way: made by the reader's loops → where the tensor
           was handed on → whole where the output was a sum
step       gradients of parameters, over axes whose ranks saw unlike rows
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol, final

import numpy as np

from costmodel.layout import Placed, settled
from costmodel.machine import exchange_s, joint
from costmodel.operators import (
    Degrees,
    OperatorPrice,
    Step,
    gradient_made,
    local_bytes,
    made,
    operator_price,
    redistribution,
    summed_loops,
    wanted,
    weight_of,
)
from costmodel.stages import reduced_bytes
from planner.sharding.choice_graph import Apart, ChoiceGraph, Edge, Follow, Limit
from planner.sharding.problem import (
    ENTRY,
    BlockProblem,
    OperatorChoice,
    choices,
    entry_choices,
)
from profiles.hardware import Format
from profiles.models import Kind, Operator, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The collectives of one micro-batch, and those of a whole step."""

    forward: tuple[Step, ...] = ()
    backward: tuple[Step, ...] = ()
    step: tuple[Step, ...] = ()

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            forward=self.forward + other.forward,
            backward=self.backward + other.backward,
            step=self.step + other.step,
        )


def own_traffic(
    operator: Operator, choice: OperatorChoice, held: float, problem: BlockProblem
) -> Traffic:
    """Of an operator whose rank holds *held* trained parameters."""
    size = problem.tensor_bytes(operator.output)
    came = made(operator, choice.loops)
    forward = redistribution(came, choice.handed, problem.axes, size)
    return Traffic(
        forward=forward + _statistics(operator, choice, problem),
        backward=redistribution(choice.handed, settled(came), problem.axes, size)
        if operator.has_backward
        else (),
        step=_gradients(choice, held, problem),
    )


def edge_traffic(
    tensor: Tensor, handed: Placed, loops: Placed, problem: BlockProblem
) -> Traffic:
    """Of a tensor *handed* on so, to an operator of these *loops*."""
    size = problem.tensor_bytes(tensor)
    want = wanted(tensor, loops)
    back = gradient_made(tensor, loops)
    return Traffic(
        forward=redistribution(handed, want, problem.axes, size),
        backward=redistribution(back, handed, problem.axes, size),
    )


def handover_traffic(
    tensor: Tensor, handed: Placed, given: Placed, problem: BlockProblem
) -> Traffic:
    """Of a block's output to the input of the next one like it."""
    size = problem.tensor_bytes(tensor)
    return Traffic(
        forward=redistribution(handed, given, problem.axes, size),
        backward=redistribution(given, handed, problem.axes, size),
    )


def _gradients(
    choice: OperatorChoice, held: float, problem: BlockProblem
) -> tuple[Step, ...]:
    marked = zip(problem.axes, summed_loops(choice.loops), strict=True)
    over = tuple(axis for axis, sums in marked if sums and axis.size > 1)
    if not over or not held:
        return ()
    size = held * reduced_bytes(problem.precision, problem.machine)
    return (Step(kind="all_reduce", axis=joint(over), size_bytes=size),)


def _statistics(
    operator: Operator, choice: OperatorChoice, problem: BlockProblem
) -> tuple[Step, ...]:
    """Of a loss whose vocabulary is split: maxima, then sums and targets, in fp32."""
    if operator.kind is not Kind.CROSS_ENTROPY:
        return ()
    rows = problem.sequences * problem.seq_len
    local = rows / problem.ways(choice.loops, "batch", "sequence")
    return tuple(
        Step(kind="all_reduce", axis=axis, size_bytes=local * count * Format.FP32.bytes)
        for word, axis in zip(choice.loops, problem.axes, strict=True)
        if word == "vocab" and axis.size > 1
        for count in (1, 2)
    )


class Measure(Protocol):
    """What is added up and made small."""

    def work(self, price: OperatorPrice) -> float: ...

    def exchange(self, step: Step) -> float: ...


@final
@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of compute and of collectives, one after the other."""

    problem: BlockProblem
    known: dict[Step, float] = field(default_factory=dict, compare=False, repr=False)

    def work(self, price: OperatorPrice) -> float:
        return float(price.forward.compute_s + price.backward.compute_s)

    def exchange(self, step: Step) -> float:
        if step not in self.known:
            machine = self.problem.machine
            taken = exchange_s(step.kind, step.size_bytes, step.axis, machine)
            self.known[step] = taken * machine.framework.overlap.exposed_tensor
        return self.known[step]


@final
@dataclass(frozen=True, slots=True)
class SentBytes:
    """Bytes that a rank sends (Tofu's measure): compute is nothing."""

    def work(self, price: OperatorPrice) -> float:
        return 0.0

    def exchange(self, step: Step) -> float:
        passes = 2.0 if step.kind == "all_reduce" else 1.0
        return passes * step.size_bytes * (1 - 1 / step.axis.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One sharding of one operator: its price and bytes on a rank."""

    choice: OperatorChoice
    cost: float
    trained: float  # parameters
    frozen: float
    kept_bytes: float
    output_bytes: float
    working_bytes: float


Options = Mapping[str, tuple[Option, ...]]


def operator_options(problem: BlockProblem, measure: Measure) -> Options:
    """Every operator's options, priced."""
    return {
        one.name: _options(one, problem, measure) for one in problem.block.operators
    }


def choice_graph(
    problem: BlockProblem, options: Options, measure: Measure
) -> ChoiceGraph:
    """The problem of picking one option an operator."""
    nodes = {
        name: np.array([one.cost for one in mine]) for name, mine in options.items()
    }
    entry = _entry_places(problem)
    if entry:
        nodes[ENTRY] = np.zeros(len(entry))
    return ChoiceGraph(
        nodes=nodes,
        edges=tuple(_edges(problem, options, entry, measure)),
        limits=() if problem.memory_bytes is None else moments(problem, options),
        apart=_tied(problem, options),
        follows=tuple(_follows(problem, options)),
    )


def _entry_places(problem: BlockProblem) -> tuple[Placed, ...]:
    entry = problem.block.entry
    return () if entry is None else entry_choices(entry, problem)


def local_price(
    operator: Operator, loops: Placed, problem: BlockProblem
) -> OperatorPrice:
    """The price of the part of an operator that its loops leave to a rank."""
    extents = dict(problem.block.extents)
    extents["hidden"] //= problem.ways(loops, "hidden")
    degrees = Degrees(
        tp=np.asarray(problem.ways(loops, "heads", "ffn", "shared_ffn", "vocab")),
        cp=np.asarray(problem.ways(loops, "sequence")),
        micro_batch=np.asarray(problem.sequences // problem.ways(loops, "batch")),
        seq_len=problem.seq_len,
        sequence_parallel=False,
        flash_attention=problem.flash_attention,
    )
    block = replace(problem.block, extents=extents)
    return operator_price(operator, block, degrees, problem.precision, problem.machine)


def _options(
    operator: Operator, problem: BlockProblem, measure: Measure
) -> tuple[Option, ...]:
    prices: dict[Placed, OperatorPrice] = {}
    found = []
    for choice in choices(operator, problem):
        if choice.loops not in prices:
            prices[choice.loops] = local_price(operator, choice.loops, problem)
        found.append(_option(operator, choice, prices[choice.loops], problem, measure))
    return tuple(found)


def _option(
    operator: Operator,
    choice: OperatorChoice,
    price: OperatorPrice,
    problem: BlockProblem,
    measure: Measure,
) -> Option:
    held = float(price.parameters)
    traffic = own_traffic(operator, choice, held, problem)
    kept = [*price.saved.values(), *price.internal.values()]
    made_bytes, whole = float(price.output_bytes), problem.tensor_bytes(operator.output)
    return Option(
        choice=choice,
        cost=measure.work(price) + traffic_cost(traffic, problem, measure),
        trained=held,
        frozen=float(price.frozen_parameters),
        kept_bytes=sum(float(size) for size in kept),
        output_bytes=local_bytes(choice.handed, problem.axes, whole),
        working_bytes=made_bytes + float(price.input_bytes),
    )


def traffic_cost(traffic: Traffic, problem: BlockProblem, measure: Measure) -> float:
    """Of one micro-batch; a step's share of it."""
    of_passes = sum(map(measure.exchange, traffic.forward + traffic.backward))
    return of_passes + sum(map(measure.exchange, traffic.step)) / problem.micro_batches


def _edges(
    problem: BlockProblem,
    options: Options,
    entry: tuple[Placed, ...],
    measure: Measure,
) -> list[Edge]:
    handed = {
        name: tuple(one.choice.handed for one in mine) for name, mine in options.items()
    }
    if entry:
        handed[ENTRY] = entry
    found = []
    for source, target, tensor in readings(problem):
        loops = [one.choice.loops for one in options[target]]
        table = _table(
            handed[source],
            loops,
            lambda have, want, tensor=tensor: edge_traffic(tensor, have, want, problem),
            problem,
            measure,
        )
        found.append(Edge(source=source, target=target, costs=table))
    if problem.loops and entry:
        last = problem.block.operators[-1]
        table = _table(
            handed[last.name],
            list(entry),
            lambda have, want: handover_traffic(last.output, have, want, problem),
            problem,
            measure,
        )
        found.append(Edge(source=last.name, target=ENTRY, costs=table))
    return found


class _TrafficOf(Protocol):
    def __call__(self, have: Placed, want: Placed, /) -> Traffic: ...


def _table(
    handed: tuple[Placed, ...],
    loops: list[Placed],
    traffic: _TrafficOf,
    problem: BlockProblem,
    measure: Measure,
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """The costs of all pairs; unlike ones are priced once."""
    known: dict[tuple[Placed, Placed], float] = {}
    table = np.empty((len(handed), len(loops)))
    for i, have in enumerate(handed):
        for j, want in enumerate(loops):
            if (have, want) not in known:
                sent = traffic(have, want)
                known[have, want] = traffic_cost(sent, problem, measure)
            table[i, j] = known[have, want]
    return table


def readings(problem: BlockProblem) -> list[tuple[str, str, Tensor]]:
    """(who makes it, who reads it, what) for every input of every operator."""
    makers = {one.output.name: one.name for one in problem.block.operators}
    if problem.block.entry is not None:
        makers.setdefault(problem.block.entry.name, ENTRY)
    return [
        (makers[tensor.name], one.name, tensor)
        for one in problem.block.operators
        for tensor in one.inputs
    ]


def moments(problem: BlockProblem, options: Options) -> tuple[Limit, ...]:
    """What each option holds while each operator runs, and how much there is."""
    order = [one.name for one in problem.block.operators]
    return tuple(
        Limit(
            name=f"memory at {at}",
            capacity=inf if problem.memory_bytes is None else problem.memory_bytes,
            uses={
                name: np.array([_held(problem, name, at, o) for o in options[name]])
                for name in order
            },
        )
        for at in order
    )


def _held(problem: BlockProblem, name: str, at: str, option: Option) -> float:
    """Bytes that an option of *name* holds while the operator *at* runs."""
    order = [one.name for one in problem.block.operators]
    here, now = order.index(name), order.index(at)
    state = option.trained * problem.state_bytes
    state += option.frozen * problem.precision.frozen_bytes
    passed = problem.in_flight if here <= now else problem.in_flight - 1
    held = state + passed * option.kept_bytes
    if here == now:
        return held + option.working_bytes
    return held + (option.output_bytes if _waits(problem, here, now) else 0.0)


def _waits(problem: BlockProblem, here: int, now: int) -> bool:
    """Whether an output lies about unsaved: made before *now*, read after it."""
    operators = problem.block.operators
    name = operators[here].output.name
    readers = [i for i, one in enumerate(operators) if name in _names(one.inputs)]
    kept = any(name in _names(one.saves) for one in operators[: now + 1])
    return here < now < max(readers, default=0) and not kept


def _names(tensors: tuple[Tensor, ...]) -> set[str]:
    return {one.name for one in tensors}


def _tied(problem: BlockProblem, options: Options) -> tuple[Apart, ...]:
    """A parameter that two operators share lies in one way: the rest is kept apart."""
    pairs = []
    for one in problem.block.operators:
        for owner in problem.block.operators if one.shared else ():
            if owner.shared or not one.name.endswith(f"_{owner.name}"):
                continue
            pairs += [
                Apart(first=(owner.name, i), second=(one.name, j))
                for i, mine in enumerate(options[owner.name])
                for j, its in enumerate(options[one.name])
                if weight_placed(owner, mine.choice) != weight_placed(one, its.choice)
            ]
    return tuple(pairs)


def weight_placed(operator: Operator, choice: OperatorChoice) -> Placed:
    """Where an operator's weight lies."""
    return wanted(weight_of(operator), choice.loops)


def _follows(problem: BlockProblem, options: Options) -> list[Follow]:
    """Elementwise operators of one input are sharded as it comes to them."""
    makers = {one.output.name: one.name for one in problem.block.operators}
    found = []
    for one in problem.block.operators:
        if one.kind is not Kind.ELEMENTWISE or one.vectors or len(one.inputs) != 1:
            continue
        leader = makers.get(one.inputs[0].name)
        at = {option.choice.loops: i for i, option in enumerate(options[one.name])}
        if leader is None:
            continue
        handed = [option.choice.handed for option in options[leader]]
        if all(placed in at for placed in handed):
            taken = tuple(at[placed] for placed in handed)
            found.append(Follow(node=one.name, leader=leader, options=taken))
    return found
