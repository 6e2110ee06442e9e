"""Bytes that an operator keeps for backward, and that it works with beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.machine import Footprint, Machine
from costmodel.operators.attention import attention_kernel
from costmodel.operators.degrees import (
    Degrees,
    held_experts,
    rows_of,
    scaled,
    tokens,
)
from costmodel.operators.sharding import (
    elements,
    extent,
    parameters,
    product_shape,
    splits_columns,
    tensor_bytes,
)
from costmodel.operators.work import OnRank
from profiles.arrays import Array
from profiles.hardware import Format, Precision
from profiles.models import PRODUCTS, Block, Kind, Operator
from profiles.samples import SIXTEEN_BITS, number_of

_ZERO = np.zeros(())

# A token and unit of width: the fp32 input and scaled output, and the 16-bit output
# [derived]; of 6 and 10 this one agrees with Hagemann's out-of-memory outcomes.
UNFUSED_NORM_SAVED_BYTES = 10.0
# Bytes of a score that are alive in attention's backward beside what it keeps, 16 bits:
# the gradients of the softmax and of its input; unfused, each in fp32 as well.
WORKING_SCORE_BYTES = {"materialised": 12.0}  # [derived]


def handed_on(at: OnRank) -> dict[str, Array]:
    """Tensors that others made and this operator keeps; those that come from layers
    further before are the stage's (`costmodel.stages`)."""
    operator, block, degrees, precision, machine = at
    share = _narrower(operator, precision, machine)
    if machine.framework.footprint.keeps_gathered and splits_columns(operator):
        degrees = replace(degrees, sequence_parallel=False)
    return {
        item.name: tensor_bytes(item, block, degrees, precision) * share
        for item in operator.saves
        if not item.internal and item not in block.reads
    }


def gradient_bytes(at: OnRank) -> Array:
    """The gradient of its output, as the gradient of its weight is made of it."""
    operator, block, degrees, precision, machine = at
    whole = tensor_bytes(operator.output, block, degrees, precision)
    return whole * _narrower(operator, precision, machine)


def _narrower(operator: Operator, precision: Precision, machine: Machine) -> float:
    """The share of 16 bits in which the operands of a weight's gradient are kept."""
    if operator.kind not in PRODUCTS or not machine.framework.footprint.saves_quantised:
        return 1.0
    number = number_of(operator, precision)
    return min(number.bytes / precision.activation.bytes, 1.0)


def beside(at: OnRank) -> Array:
    """What is alive inside an operator beside what it keeps."""
    operator, block, degrees, precision, machine = at
    habits = machine.framework.footprint
    if operator.kind is Kind.CROSS_ENTROPY:
        logits = elements(operator.inputs[0], block, degrees) * _copies(degrees, habits)
        return np.asarray(logits * habits.logits_bytes(precision, degrees.tp))
    if operator.kind is Kind.ATTENTION:
        written = WORKING_SCORE_BYTES.get(attention_kernel(degrees, machine), 0.0)
        rows = -(-block.heads // degrees.tp) * rows_of(operator, degrees, split=False)
        working = rows * _scores(operator, degrees) * written
        return np.asarray(working + _summed_keys(block, degrees, precision))
    if habits.dummy_gradients and _makes_logits(operator):
        # When the head's is made, the softmax has turned into the logits' gradient.
        softmax = elements(operator.output, block, degrees) * Format.FP32.bytes
        return np.maximum(_whole_gradient(at) - softmax, 0.0)
    narrow = number_of(operator, precision).bytes < SIXTEEN_BITS
    if narrow and machine.framework.fp8.quantises_again:
        return _operands(at)
    return _ZERO


def dummy_bytes(at: OnRank) -> Array:
    """What is kept for the gradient of a weight that is already added up, where the
    software does: one tensor for a shape, so that experts share theirs. The head's is
    another code's, which lets go of it (`beside`)."""
    operator, block, degrees, _, machine = at
    products = operator.kind in PRODUCTS and not _makes_logits(operator)
    if not (machine.framework.footprint.dummy_gradients and products):
        return _ZERO
    grouped = operator.kind is Kind.GROUPED_MATMUL
    return _whole_gradient(at) / (held_experts(block, degrees) if grouped else 1)


def _whole_gradient(at: OnRank) -> Array:
    """Bytes of a trained weight's gradient as a product makes it."""
    operator, block, degrees, precision, _ = at
    if operator.frozen:
        return _ZERO
    return np.asarray(parameters(operator, block, degrees) * precision.activation.bytes)


def _makes_logits(operator: Operator) -> bool:
    return operator.kind in PRODUCTS and "vocab" in operator.columns


def _summed_keys(block: Block, degrees: Degrees, precision: Precision) -> Array:
    """The gradient of all keys, or of all values, that ring self-attention makes on
    every rank and sums (Colossal-AI, parallel_sequence/_operation.py)."""
    if degrees.cp_kind != "rsa":
        return _ZERO
    keys = tokens(degrees, split=False) * extent("key_value", block, degrees) / 2
    return np.asarray(np.where(degrees.cp > 1, degrees.cp * keys, 0.0)) * (
        precision.activation.bytes
    )


def _operands(at: OnRank) -> Array:
    """The input's gradient, and the 8-bit operands of the largest of three products:
    the one that is made last is scaled in 16 bits before it is cast [derived] from
    runtime/parallel/fp8.py. A CPU multiplies them in 32 bits (PyTorch 2.13)."""
    operator, block, degrees, precision, machine = at
    m, n, k = product_shape(operator, block, degrees)
    last = 1 + SIXTEEN_BITS
    narrow = np.maximum(
        np.maximum(m * k, m * n) + last * n * k,  # output, and the input's gradient
        2 * m * n + last * m * k,  # the weight's gradient: the output's is there turned
    )
    if machine.shares_cores:
        narrow = narrow + Format.FP32.bytes * (m * k + n * k + m * n)
    return np.asarray(narrow + m * k * precision.activation.bytes)


def _copies(degrees: Degrees, habits: Footprint) -> Array:
    """Of the local logits, how many a rank holds."""
    return degrees.tp if habits.whole_logits else np.ones_like(degrees.tp)


def internal(at: OnRank) -> dict[str, Array]:
    """What an operator keeps of its own making: masks, softmax, row statistics."""
    operator, block, degrees, precision, machine = at
    kept = {
        item.name: tensor_bytes(item, block, degrees, precision)
        for item in operator.saves
        if item.internal
    }
    habits = machine.framework.footprint
    if operator.kind is Kind.CROSS_ENTROPY:
        share = _copies(degrees, habits)
        if habits.half_softmax:
            share = share * (precision.activation.bytes / Format.FP32.bytes)
        kept = {name: size * share for name, size in kept.items()}
    if habits.keeps_gate and operator.function in ("swiglu", "geglu", "reglu"):
        kept[f"{operator.name}_gate"] = tensor_bytes(
            operator.output, block, degrees, precision
        )
    if operator.is_norm and not machine.framework.kernels.fused_norm:
        count = elements(operator.output, block, degrees)
        kept[f"{operator.name}_copies"] = count * UNFUSED_NORM_SAVED_BYTES
    if operator.function == "rmsnorm" and machine.shares_cores:
        # PyTorch has no kernel of it for CPUs: it keeps the scaled input as well, for
        # the gradient of the weight (twice a LayerNorm's bytes, as `profile` sees).
        kept[f"{operator.name}_scaled"] = tensor_bytes(
            operator.output, block, degrees, precision
        )
    if operator.kind is Kind.COMBINE and machine.framework.moe.weighs_rows:
        own = tokens(degrees, split=degrees.sequence_parallel)
        width = block.extents["routed"] * block.extents[operator.output.dims[-1]]
        kept[f"{operator.name}_rows"] = own * width * precision.activation.bytes
    if operator.kind is Kind.ATTENTION:
        rows = -(-block.heads // degrees.tp) * rows_of(operator, degrees, split=False)
        kernel = attention_kernel(degrees, machine)
        if kernel.startswith("flash"):
            kept[core_of(operator)] = rows * Format.FP32.bytes  # log-sum-exp
        else:
            score = _score_bytes(kernel, block, precision)
            if kernel == "fused-softmax":
                score += habits.score_bytes
            kept[core_of(operator)] = rows * _scores(operator, degrees) * score
    return kept


def written_softmax(at: OnRank) -> dict[str, tuple[Array, float]]:
    """The softmax that attention keeps where no kernel fuses it away, without masks,
    and the bytes of an element: where it is kept in fp32 too, the mean of both."""
    operator, block, degrees, precision, machine = at
    kernel = attention_kernel(degrees, machine)
    if operator.kind is not Kind.ATTENTION or kernel.startswith("flash"):
        return {}
    rows = -(-block.heads // degrees.tp) * rows_of(operator, degrees, split=False)
    written = _softmax_bytes(kernel, precision)
    tensors = 1 if written == precision.activation.bytes else 2
    size = rows * _scores(operator, degrees) * written
    return {core_of(operator): (size, written / tensors)}


def core_of(operator: Operator) -> str:
    """The name of what attention keeps of its own making (`costmodel.layout.CORE`)."""
    return f"{operator.name}_core"


def _scores(operator: Operator, degrees: Degrees) -> float:
    """Of a query, all of which are written where no kernel fuses them."""
    share = operator.rows if operator.keys is None else operator.keys
    return float(scaled(np.asarray(degrees.seq_len), share))


def _score_bytes(kernel: str, block: Block, precision: Precision) -> float:
    """Bytes that attention keeps of a score: its softmax, and after dropout what is
    left of it with its mask (Korthikanti et al., 4.1); in fp32 too without fusion."""
    kept = _softmax_bytes(kernel, precision)
    drops = any(item.function.startswith("dropout") for item in block.operators)
    return kept + precision.activation.bytes + 1 if drops else kept


def _softmax_bytes(kernel: str, precision: Precision) -> float:
    kept = precision.activation.bytes
    fused = kernel != "materialised" or kept >= Format.FP32.bytes
    return kept if fused else kept + Format.FP32.bytes
