"""What a chosen sharding communicates: inside an operator, and on an edge.

forward    made → handed, once a tensor;   handed → wanted, once a reader
backward   the gradient the other way: made by the reader's loops → where the tensor
           was handed on → whole where the output was a sum
step       gradients of parameters, over axes whose ranks saw unlike rows
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.data_parallel import reduced_bytes
from costmodel.mesh_axes import joint
from costmodel.operator_sharding import gradient_made, made, summed_loops, wanted
from costmodel.placements import Placed, settled
from costmodel.redistribution import Step, redistribution
from planner.block_problem import BlockProblem
from planner.sharding_choices import OperatorChoice
from profiles.operators import Kind, Operator, Tensor
from profiles.precision import Format


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
