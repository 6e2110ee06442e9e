"""FLOPs of a step as published tables count them.

Convention `megatron`: every matrix product, attention over the full square although a
causal mask needs half of it; 72·B·s·L·h²·(1 + s/6h + V/12Lh) for a GPT (Narayanan et
al., SC 2021, appendix; Korthikanti et al., 2023, appendix A). Backward is twice
forward; embeddings look up and cost nothing.
"""

from __future__ import annotations

from typing import Final

from profiles.graph import Block
from profiles.job import Job
from profiles.operators import Kind, Operator

CONVENTION: Final = "megatron: matrix products, attention in full, without recompute"


def model_flops(job: Job) -> float:
    """FLOPs that one step of *job* needs, forward and backward, no recompute.

    >>> from profiles.models.spec import DecoderSpec
    >>> spec = DecoderSpec(layers=2, hidden=8, heads=2, vocab=16, ffn_hidden=32,
    ...     kv_heads=2, head_dim=4, max_positions=4)
    >>> job = Job(model="toy", spec=spec, seq_len=4, global_batch=1)
    >>> round(model_flops(job) / (72 * 4 * 2 * 64 * (1 + 4 / 48 + 16 / 192)), 9)
    1.0
    """
    return sum(
        count * _passes(item) * operator_flops(item, block, job)
        for block, count in job.graph.blocks
        for item in block.operators
    )


def _passes(operator: Operator) -> float:
    """Forward, and backward for its inputs and for its weight, unless that is frozen:
    fine-tuning adapters takes 2/3 of the FLOPs."""
    return 2.0 if operator.frozen and operator.kind is Kind.MATMUL else 3.0


def block_flops(block: Block, job: Job, names: frozenset[str] | None = None) -> float:
    """Forward FLOPs of a step through *block*, or through its operators *names*."""
    return sum(
        operator_flops(item, block, job)
        for item in block.operators
        if names is None or item.name in names
    )


def operator_flops(operator: Operator, block: Block, job: Job) -> float:
    """Forward FLOPs of a whole step through one operator."""
    if operator.kind is Kind.MATMUL:
        assert operator.contracted is not None
        n = sum(_width(name, block) for name in operator.columns)
        return 2.0 * job.tokens * n * _width(operator.contracted, block)
    if operator.kind is Kind.ATTENTION:
        span = min(block.window or job.seq_len, job.seq_len)
        return 4.0 * job.tokens * span * block.heads * block.head_dim
    return 0.0


def total_compute_flops(parameters: float, tokens: float) -> float:
    """FLOPs of a whole run as Brown et al. (2020, appendix D) count them: 6·P·T.

    Two a parameter and token forward, four backward; attention is left out. Where a
    token does not meet every weight (an encoder-decoder's half, the experts chosen)
    *parameters* are those that it meets.

    >>> f"{total_compute_flops(174.6e9, 300e9):.3g}"  # GPT-3 175B
    '3.14e+23'
    """
    return 6.0 * parameters * tokens


def _width(name: str, block: Block) -> int:
    return block.extents[name]
