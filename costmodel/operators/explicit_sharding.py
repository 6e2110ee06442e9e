"""A block whose operators are split as explicit `ModuleSharding`s say: its prices.

local work     each operator at the shape that its loop leaves to a rank
collectives    inputs from where they are given to where they are wanted, outputs from
               where they are made to where they are handed on, gradients the other way
once a step    gradients of what is whole on ranks that saw unlike rows

The tp axis is the only one; the layer's own input and output lie as its preset says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.layout import ModuleSharding, Placed, settled
from costmodel.machine import Machine, Sourced, near_members
from costmodel.operators.degrees import Degrees
from costmodel.operators.loop_sharding import (
    dimension,
    gradient_made,
    loops_of,
    parameter_dims,
    summands,
)
from costmodel.operators.operator_cost import Sent, operator_price
from costmodel.operators.sharding import ROWS, Collective, parameters, redistribute
from costmodel.operators.work import OperatorPrice
from profiles.arrays import Array
from profiles.errors import InvalidSpec
from profiles.hardware import Precision
from profiles.models import Block, Operator, Tensor


@dataclass(frozen=True, kw_only=True)
class Explicit:
    """One operator of *block* as *sharding* splits it over the tp ranks of *degrees*.

    Raises InvalidSpec for placements that no split of one of its loops has.
    """

    operator: Operator
    sharding: ModuleSharding
    block: Block
    degrees: Degrees
    precision: Precision

    @property
    def loop(self) -> str:
        (word,) = loops_of(self.sharding, self.operator)
        return word

    @property
    def forward(self) -> list[Collective]:
        """What the tp group communicates in the forward, in order; bytes of the full
        tensors."""
        output = self.sharding.output
        sent = [
            self._moved(tensor, one.given, one.wanted)
            for tensor, one in zip(
                self.operator.inputs, self.sharding.inputs, strict=True
            )
        ]
        sent.append(self._moved(self.operator.output, output.made, output.handed))
        return [one for one in sent if one is not None]

    @property
    def backward(self) -> list[Collective]:
        """The same of the gradients: of the output, then of the inputs."""
        if not self.operator.has_backward:
            return []
        output = self.sharding.output
        sent = [self._moved(self.operator.output, output.handed, settled(output.made))]
        for tensor, one in zip(self.operator.inputs, self.sharding.inputs, strict=True):
            (word,) = gradient_made(tensor, (self.loop,))
            back = next((d for d in tensor.dims if dimension(d) == word), word)
            sent.append(self._moved(tensor, (back,), one.given))
        return [one for one in sent if one is not None]

    @property
    def local(self) -> tuple[Block, Degrees]:
        """The block and degrees that give the operator the shape that a rank has."""
        word, ranks = self.loop, self.degrees.tp
        extents: dict[str, Any] = dict(self.block.extents)
        if word == "hidden":
            extents["hidden"] = extents["hidden"] // ranks
        one = np.ones_like(ranks)
        rows = {"sequence": ranks} if word == "sequence" else {}
        degrees = replace(
            self.degrees,
            tp=one if word in (*ROWS, "hidden", "whole") else ranks,
            cp=np.asarray(self.degrees.cp * rows.get("sequence", one)),
            micro_batch=np.asarray(
                self.degrees.micro_batch // (ranks if word == "batch" else one)
            ),
            sequence_parallel=False,
            modules=(),
        )
        return replace(self.block, extents=extents), degrees

    @property
    def summands(self) -> Array:
        """Trained parameters of whose gradients each tp rank has a summand."""
        (handed,) = self.sharding.output.handed
        partial = summands(self.operator, self.loop, handed)
        if not partial or self.operator.frozen:
            return np.zeros(())
        block, degrees = self.local
        held = parameters(self.operator, block, degrees)
        if partial == frozenset(parameter_dims(self.operator)):
            return held
        assert partial == {"bias"}, "a weight is split with its bias or summed with it"
        return np.asarray(sum(self.block.extents[one] for one in self.operator.columns))

    def _moved(self, tensor: Tensor, have: Placed, want: Placed) -> Collective | None:
        kind = redistribute(have[0], want[0])
        if kind is None:
            return None
        degrees = self.degrees
        size = degrees.micro_batch * degrees.seq_len * tensor.copies
        for name in tensor.dims:
            if name not in ROWS:
                size = size * sum(self.block.extents[one] for one in name.split("+"))
        full = np.asarray(size * self.precision.activation.bytes)
        return Collective(kind=kind, size_bytes=full)


def explicit(
    operator: Operator, block: Block, degrees: Degrees, precision: Precision
) -> Explicit:
    """*operator* as the one of `degrees.modules` that is of it says."""
    return Explicit(
        operator=operator,
        sharding=_sharding_of(operator, block, degrees.modules),
        block=block,
        degrees=degrees,
        precision=precision,
    )


def explicit_prices(
    block: Block, degrees: Degrees, precision: Precision, machine: Machine
) -> dict[str, OperatorPrice]:
    """Every operator of *block*, by `degrees.modules`.

    Raises InvalidSpec where those are not of its operators, or cannot be.
    """
    found = {}
    for operator in block.operators:
        one = explicit(operator, block, degrees, precision)
        local_block, local_degrees = one.local
        found[operator.name] = operator_price(
            operator,
            local_block,
            local_degrees,
            precision,
            machine,
            Sent(
                ranks=degrees.tp,
                forward=_sent(one.forward, degrees, machine),
                backward=_sent(one.backward, degrees, machine),
                summands=one.summands,
            ),
        )
    return found


def _sent(
    collectives: Iterable[Collective], degrees: Degrees, machine: Machine
) -> Sourced:
    """Exposed seconds, one after the other."""
    total = Sourced(seconds=np.zeros(()))
    near = near_members(np.asarray(1), degrees.tp, machine.island)
    for item in collectives:
        held = degrees.tp if item.kind == "all_to_all" else 1  # its price is a rank's
        total = total + machine.collective(
            item.kind, item.size_bytes / held, ranks=degrees.tp, near=near
        )
    return total * machine.framework.overlap.exposed_tensor


def _sharding_of(
    operator: Operator, block: Block, modules: tuple[ModuleSharding, ...]
) -> ModuleSharding:
    for one in modules:
        if one.module == f"{block.name}.{operator.name}":
            return one
    raise InvalidSpec(
        f"{block.name}.{operator.name} has no sharding among the layer's modules "
        f"({', '.join(one.module for one in modules)}); give one for each operator"
    )
