"""How weights are stored: bytes by precision, or quantized in groups.

A quantized weight takes its bits, and a scale and a zero of 16 bits for every group:
P (1 + 4/g) bytes of P weights in 8 bits (ZeroQuant, Yao et al., NeurIPS 2022, section
4.1: group-wise quantization; GPTQ and AWQ store as much). Embedding, head, routers,
norms and biases stay as activations are, as number formats of fewer bits leave them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.degrees import Degrees
from costmodel.experts import held_experts
from costmodel.sharding import parameters, product_shape
from profiles.graph import Block
from profiles.measurable import NEVER_NARROW, SIXTEEN_BITS, number_of
from profiles.operators import PRODUCTS, Kind, Operator
from profiles.precision import Precision

Array = NDArray[Any]
GROUP_SIZE: Final = 128  # that GPTQ's and AWQ's checkpoints mostly have
_BITS: Final = {"int8": 8, "int4": 4}
_SCALE_AND_ZERO_BYTES: Final = 2 * SIXTEEN_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Weights of *precision*; those of the layers' products *quantization*, if any."""

    precision: Precision
    quantization: str | None = None
    group_size: int = GROUP_SIZE

    def each_bytes(self, operator: Operator) -> float:
        """Bytes of one element of an operator's weight.

        >>> from profiles.precision import precision
        >>> up = Operator(name="up", kind=Kind.MATMUL, function="matmul", inputs=(),
        ...               output=None, columns=("ffn",), contracted="hidden")
        >>> Stored(precision=precision("bf16"), quantization="int4").each_bytes(up)
        0.53125
        """
        if operator.kind not in PRODUCTS:
            return self.precision.activation.bytes
        if self.quantization is not None and not NEVER_NARROW & {*operator.columns}:
            bits = _BITS[self.quantization]
            return bits / 8 + _SCALE_AND_ZERO_BYTES / self.group_size
        return number_of(operator, self.precision).bytes

    def held_bytes(self, operator: Operator, block: Block, degrees: Degrees) -> Array:
        """Bytes of all that a rank holds of an operator: weight, bias, vectors."""
        held = parameters(operator, block, degrees)
        if operator.kind not in PRODUCTS:
            return np.asarray(held * self.precision.activation.bytes)
        _, n, k = product_shape(operator, block, degrees)
        weight = n * k
        if operator.kind is Kind.GROUPED_MATMUL:
            weight = weight * held_experts(block, degrees)
        each = self.each_bytes(operator)
        rest = (held - weight) * self.precision.activation.bytes
        return np.asarray(weight * each + rest)
