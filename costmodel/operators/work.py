"""`Work`: one pass of an operator; `OperatorPrice`: both, and what it keeps."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from costmodel.machine import LaunchFloor, Machine, Sourced, plus, zero
from costmodel.operators.degrees import Degrees
from profiles.arrays import Array
from profiles.hardware import Precision
from profiles.models import Block, Operator

_ZERO = zero()


class OnRank(NamedTuple):
    """An operator of a block as ranks of a machine run it."""

    operator: Operator
    block: Block
    degrees: Degrees
    precision: Precision
    machine: Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One pass of an operator: seconds on the device and waiting, FLOPs done.

    `measured_s`, `fitted_s` and `spread_s` are those of `Sourced`, of all its seconds
    on the device.
    """

    compute_s: Array = field(default_factory=zero)
    tensor_comm_s: Array = field(default_factory=zero)
    context_comm_s: Array = field(default_factory=zero)
    expert_comm_s: Array = field(default_factory=zero)
    weight_s: Array = field(default_factory=zero)  # of compute: weights' gradients
    flops: Array = field(default_factory=zero)
    host_s: Any = 0.0  # a number or an array
    awaited_s: Any = 0.0  # of the host's: where other ranks wait for it
    measured_s: Array = field(default_factory=zero)
    fitted_s: Array = field(default_factory=zero)
    spread_s: Array = field(default_factory=zero)

    @classmethod
    def of(
        cls,
        compute: Sourced,
        *,
        tensor_comm: Sourced | None = None,
        context_comm: Sourced | None = None,
        expert_comm: Sourced | None = None,
        flops: Array = _ZERO,
        host_s: Any = 0.0,
        awaited_s: Any = 0.0,
        weight_s: Array = _ZERO,
    ) -> Work:
        """The work of *compute* and of what is communicated beside it."""
        nothing = Sourced(seconds=_ZERO)
        tensor, context = tensor_comm or nothing, context_comm or nothing
        expert = expert_comm or nothing
        total = compute + tensor + context + expert
        return cls(
            compute_s=compute.seconds,
            tensor_comm_s=tensor.seconds,
            context_comm_s=context.seconds,
            expert_comm_s=expert.seconds,
            flops=flops,
            host_s=host_s,
            awaited_s=awaited_s,
            weight_s=weight_s,
            measured_s=total.measured_s,
            fitted_s=total.fitted_s,
            spread_s=total.spread_s,
        )

    def __add__(self, other: Work) -> Work:
        return Work(
            compute_s=self.compute_s + other.compute_s,
            tensor_comm_s=self.tensor_comm_s + other.tensor_comm_s,
            context_comm_s=self.context_comm_s + other.context_comm_s,
            expert_comm_s=plus(self.expert_comm_s, other.expert_comm_s),
            weight_s=plus(self.weight_s, other.weight_s),
            flops=self.flops + other.flops,
            host_s=self.host_s + other.host_s,
            awaited_s=self.awaited_s + other.awaited_s,
            measured_s=plus(self.measured_s, other.measured_s),
            fitted_s=plus(self.fitted_s, other.fitted_s),
            spread_s=plus(self.spread_s, other.spread_s),
        )

    def __mul__(self, share: float) -> Work:
        """*share* of the work."""
        return Work(**{item.name: getattr(self, item.name) * share for item in _FIELDS})

    @property
    def device_s(self) -> Array:
        sent = plus(self.context_comm_s, self.expert_comm_s)
        return self.compute_s + self.tensor_comm_s + sent

    @property
    def sourced(self) -> Sourced:
        """The seconds on the device, with where they come from."""
        return Sourced(
            seconds=self.device_s,
            measured_s=self.measured_s,
            fitted_s=self.fitted_s,
            spread_s=self.spread_s,
        )

    def total_s(self, floor: LaunchFloor) -> Array:
        """Device time over the host's launch floor."""
        return floor.seconds(
            self.device_s, np.asarray(self.host_s, float), np.asarray(self.awaited_s)
        )


_FIELDS = fields(Work)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPrice:
    """One operator's work, local parameters and bytes by saved tensor's name."""

    forward: Work
    backward: Work
    parameters: Array  # that are trained, but for those of experts
    expert_parameters: Array  # that are trained
    frozen_parameters: Array
    summands: Array  # of those that are trained, of whose gradient tp ranks have parts
    waits: Any  # where the host waits for the device before its forward
    dummy_bytes: Array  # kept for gradients that are added up already
    saved: dict[str, Array]
    internal: dict[str, Array]  # dropped together with the operator's own working
    # of those, scores that are written, which can be packed, and bytes of an element
    softmax: dict[str, tuple[Array, float]]
    gradient_bytes: Array  # of the output's, as that of a weight is made of it
    output_bytes: Array
    input_bytes: Array
