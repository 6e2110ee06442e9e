"""FLOPs of a step as published tables count them, by named conventions.

    megatron   every matrix product, attention over the full square although a causal
               mask needs half of it; 72·B·s·L·h²·(1 + s/6h + V/12Lh) for a GPT
               (Narayanan et al., SC 2021, appendix; Korthikanti et al., 2023, app. A)
    causal     the same with the half of the square that a causal mask leaves: as
               Megatron-Bridge's tables, MLPerf's and Yuan et al. (ATC 2024) count
    palm       6·N + 12·L·H·Q·T a token, N all parameters, embeddings too (Chowdhery et
               al., 2022, appendix B; Hagemann et al., 2023; llm-foundry)

*Model* FLOPs are without recompute and make the MFU; *hardware* FLOPs count what is
recomputed once more and make the HFU (96·B·s·L·h²·(1 + s/6h + V/16Lh) where all of a
layer is). Backward is twice forward; embeddings look up and cost nothing. Of experts
those count that a token goes to, none for tokens that are dropped. Of a recurrence the
elements of its state count, however its kernels work, as Megatron-LM's own report has
it (`num_floating_point_operations`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from profiles.errors import UnknownName
from profiles.models import (
    PRODUCTS,
    VALUE,
    Block,
    DecoderSpec,
    Job,
    Kind,
    Operator,
    operator_parameters,
    parameters,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """How FLOPs are counted.

    `causal` counts half of the scores where a causal mask drops half of them; with
    `by_parameters` everything but attention is 6 FLOPs a parameter and token.
    """

    name: str
    words: str
    brief: str
    causal: bool = False
    by_parameters: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.words}"


MEGATRON: Final = Convention(
    name="megatron",
    words="matrix products, attention in full, without recompute",
    brief="attention in full",
)
CONVENTIONS: Final = {
    item.name: item
    for item in (
        MEGATRON,
        Convention(
            name="causal",
            words="matrix products, half of causal attention, without recompute",
            brief="half of causal attention",
            causal=True,
        ),
        Convention(
            name="palm",
            words="6N + 12LHQT a token, N all parameters, without recompute",
            brief="6 FLOPs a parameter, attention in full",
            by_parameters=True,
        ),
    )
}


# FLOPs of a token and element of a recurrence's state: Mamba-2's 7, and of a gated
# delta net four products with the state, as Megatron-LM counts; linear attention has
# two of these; Mamba-1 counts decay, input and output (Gu and Dao, 2023, 3.3.2).
SCAN_FLOPS: Final = {"mamba-1": 9.0, "mamba-2": 7.0, "gated-delta": 8.0, "linear": 4.0}


def convention(name: str) -> Convention:
    """The convention called *name*; raises UnknownName."""
    if name not in CONVENTIONS:
        raise UnknownName("FLOPs convention", name, CONVENTIONS)
    return CONVENTIONS[name]


@lru_cache(maxsize=1024)
def model_flops(job: Job, counted: Convention = MEGATRON) -> float:
    """FLOPs that one step of *job* needs, forward and backward, no recompute.

    >>> from profiles.models.spec import DecoderSpec
    >>> spec = DecoderSpec(layers=2, hidden=8, heads=2, vocab=16, ffn_hidden=32,
    ...     kv_heads=2, head_dim=4, max_positions=4)
    >>> job = Job(model="toy", spec=spec, seq_len=4, global_batch=1)
    >>> round(model_flops(job) / (72 * 4 * 2 * 64 * (1 + 4 / 48 + 16 / 192)), 9)
    1.0
    """
    total = 0.0
    if counted.by_parameters:
        each = 4.0 if job.adapters else 6.0  # frozen weights have no gradients
        total = each * _met(job) * job.tokens
    return total + sum(
        count * _passes(item) * operator_flops(item, block, job, counted)
        for block, count in job.graph.blocks
        for item in block.operators
        if item.kind is Kind.ATTENTION or not counted.by_parameters
    )


def _met(job: Job) -> float:
    """Parameters that a token meets: of a decoder all but the experts not chosen, of
    others those of each operator for each of its rows a token."""
    graph, tables = job.graph, {table for group in job.graph.tied for table in group}
    if isinstance(job.spec, DecoderSpec):
        return parameters(job.spec).active
    return sum(
        operator_parameters(one, block) * one.rows
        for name, block in graph.layer_blocks.items()
        for one in block.operators
        if one.kind is not Kind.EMBEDDING or (name, one.name) not in tables
    )


def _passes(operator: Operator) -> float:
    """Forward, and backward for its inputs and for its weight, unless that is frozen:
    fine-tuning adapters takes 2/3 of the FLOPs."""
    return 2.0 if operator.frozen and operator.kind in PRODUCTS else 3.0


def block_flops(
    block: Block,
    job: Job,
    names: frozenset[str] | None = None,
    counted: Convention = MEGATRON,
) -> float:
    """Forward FLOPs of a step through *block*, or through its operators *names*."""
    return sum(
        operator_flops(item, block, job, counted)
        for item in block.operators
        if names is None or item.name in names
    )


def operator_flops(
    operator: Operator, block: Block, job: Job, counted: Convention = MEGATRON
) -> float:
    """Forward FLOPs of a whole step through one operator."""
    if operator.kind in PRODUCTS:
        assert operator.contracted is not None
        n = sum(_width(name, block) for name in operator.columns)
        met = block.extents["routed"] if operator.kind is Kind.GROUPED_MATMUL else 1
        rows = job.tokens * operator.rows
        return 2.0 * rows * met * n * _width(operator.contracted, block)
    if operator.kind is Kind.ATTENTION:
        share = operator.rows if operator.keys is None else operator.keys
        every = job.seq_len * share
        span = min(block.window or every, every)
        # A window shorter than the sequence is a band: no half of it is masked.
        half = counted.causal and operator.causal and span == every
        rows = job.tokens * operator.rows
        square = 4.0 * rows * span * block.heads * block.head_dim
        return square / 2 if half else square
    if operator.kind is Kind.SCAN:
        each = SCAN_FLOPS[operator.function] * job.tokens
        return each * block.extents["mixer_state"] * _width(VALUE, block)
    return 0.0


def total_compute_flops(count: float, tokens: float) -> float:
    """FLOPs of a whole run as Brown et al. (2020, appendix D) count them: 6·P·T.

    Two a parameter and token forward, four backward; attention is left out. Where a
    token does not meet every weight (an encoder-decoder's half, the experts chosen)
    *count* is of those that it meets.

    >>> f"{total_compute_flops(174.6e9, 300e9):.3g}"  # GPT-3 175B
    '3.14e+23'
    """
    return 6.0 * count * tokens


def _width(name: str, block: Block) -> int:
    return block.extents[name]
