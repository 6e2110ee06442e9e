"""The key-value cache: what attention keeps of every token that it has seen.

    heads     2 · kv_heads · head_dim elements a layer and token, cut over tp by heads
    latents   kv_rank + rope of latent attention, whole on every tp rank (DeepSeek-V2,
              2024, section 2.1)

A layer that looks through a window keeps no more tokens than that.

How weights are stored: bytes by precision, or quantized in groups.

A quantized weight takes its bits, and a scale and a zero of 16 bits for every group:
P (1 + 4/g) bytes of P weights in 8 bits (ZeroQuant, Yao et al., NeurIPS 2022, section
4.1: group-wise quantization; GPTQ and AWQ store as much). With activations in 8 bits by
token (W8A8) products run as those of fp8 do, whose rate is that of INT8 on Hopper and
later. Embedding, head, routers,
norms and biases stay as activations are, as number formats of fewer bits leave them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.operators import Degrees, held_experts, parameters, product_shape
from costmodel.options import W8A8
from profiles.arrays import Array
from profiles.hardware import Format, Precision
from profiles.models import PRODUCTS, Block, Kind, Operator
from profiles.samples import NEVER_NARROW, SIXTEEN_BITS, number_of

GROUP_SIZE: Final = 128  # that GPTQ's and AWQ's checkpoints mostly have
_BITS: Final = {"int8": 8, "int4": 4, W8A8: 8}
_SCALE_AND_ZERO_BYTES: Final = 2 * SIXTEEN_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Weights of *precision*; those of the layers' products *quantization*, if any."""

    precision: Precision
    quantization: str | None = None
    group_size: int = GROUP_SIZE

    def each_bytes(self, operator: Operator) -> float:
        """Bytes of one element of an operator's weight.

        >>> from profiles.hardware.precisions import precision
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

    def multiplied_in(self, operator: Operator) -> Format:
        """The format of the operands of a product."""
        if self.quantization == W8A8 and not NEVER_NARROW & {*operator.columns}:
            return Format.FP8
        return number_of(operator, self.precision)

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


def attends(block: Block) -> bool:
    """Whether a block has attention, and so a cache."""
    return any(item.kind is Kind.ATTENTION for item in block.operators)


def is_latent(block: Block) -> bool:
    """Whether it keeps latents instead of keys and values."""
    return "kv_rank" in block.extents


def cached_elements(block: Block, tp: int = 1) -> int:
    """Elements that a rank keeps of a token in one layer."""
    if not attends(block):
        return 0
    if is_latent(block):
        return block.extents["kv_rank"] + block.extents["rope"]
    return 2 * max(-(-block.kv_heads // tp), 1) * block.head_dim


def span(block: Block, context: Any) -> Array:
    """Tokens that a layer looks at, and keeps, of *context*."""
    most = context if block.window is None else np.minimum(context, block.window)
    return np.asarray(most)


def token_elements(layers: Iterable[Block]) -> int:
    """Elements of a token in all *layers* of a model together, windows left out."""
    return sum(cached_elements(block) for block in layers)
