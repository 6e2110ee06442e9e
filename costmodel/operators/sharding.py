"""One rule a dimension: an operator under a layout, as local shapes and collectives.

    batch                                  micro-batch sequences a rank
    sequence                               over cp; and over tp where sequence parallel
                                           and no other dimension of the tensor is on tp
    query, key_value, heads, ffn, vocab    over tp
    latent queries, keys and values        over tp, as the heads they are of
    values, keys and heads of a recurrence over tp; keys are of a group or more
    experts                                over ep, and their width over etp (`experts`)
    hidden, positions, latents             whole

No two dimensions of one tensor lie on one mesh axis (Mesh-TensorFlow, Shazeer et al.,
NeurIPS 2018, section 3). From that rule alone follow Megatron's column and row split
and its collectives: whatever is *made* in one placement and *wanted* in another is
redistributed, and the gradient travels the transposed way.

`local_shape`: what an operator is on one rank, in the words of a sample key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from costmodel.layout import Placement as Placement
from costmodel.operators.degrees import Degrees as Degrees
from costmodel.operators.degrees import (
    held_experts,
    held_width,
    routed_rows,
    rows_of,
    scaled,
    sent_rows,
)
from costmodel.operators.degrees import tokens as tokens
from profiles.arrays import Array
from profiles.hardware import Format, Precision
from profiles.models import (
    HEADS,
    JOINED,
    KEY,
    SPLIT_KEY,
    SPLIT_MLP,
    SPLIT_QUERY,
    TURNED,
    VALUE,
    Block,
    Element,
    Kind,
    Operator,
    Tensor,
)
from profiles.samples import operator_shape

ROWS = frozenset({"batch", "sequence", "routed"})
ON_TP = frozenset(
    {"query", "key_value", "query+key_value", "heads", "ffn", "vocab"}
) | {
    *("shared_ffn", "latent_query", "latent_key", "latent_key_value", "value", TURNED),
    *("query+key_value+ffn", "query+key_value+ffn+ffn", "query+ffn"),  # side by side
    *("query+key_value+query", VALUE, KEY, HEADS, *JOINED),
    *(SPLIT_QUERY, SPLIT_KEY, SPLIT_MLP),
}
# Vectors that each head has whole.
OF_ONE_HEAD = frozenset({"head_dim", "mixer_head_dim"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective over the tp axis: bytes of the full tensor, whether a product is
    computed beside it, and whether a GPU's hides it."""

    kind: str  # all_reduce, all_gather, reduce_scatter
    size_bytes: Array
    hidden: bool = False
    beside: bool = False


def redistribute(have: str, want: str) -> str | None:
    """The collective that turns one placement into another; None if it is free.

    A word that is no `Placement` is the dimension that the tensor is split along.

    >>> redistribute(Placement.PARTIAL, Placement.SEQUENCE)
    'reduce_scatter'
    """
    if have == want or have == Placement.WHOLE or want == Placement.PARTIAL:
        return None
    if have == Placement.PARTIAL:
        return "all_reduce" if want == Placement.WHOLE else "reduce_scatter"
    return "all_gather" if want == Placement.WHOLE else "all_to_all"


def natural(tensor: Tensor, *, sequence_parallel: bool) -> Placement:
    """How a tensor is handed from one operator to the next."""
    if "routed" in tensor.dims:
        return Placement.ROUTED
    if ON_TP & set(tensor.dims):
        return Placement.WIDTH
    return Placement.SEQUENCE if sequence_parallel else Placement.WHOLE


def extent(name: str, block: Block, degrees: Degrees) -> Array:
    """Local length of a width dimension."""
    if "+" in name:
        parts = [extent(part, block, degrees) for part in name.split("+")]
        return np.asarray(sum(parts))
    if name == "key_value":  # each rank has at least one key-value head
        heads = np.maximum(-(-block.kv_heads // degrees.tp), 1)
        return np.asarray(2 * heads * block.head_dim)
    if name == "query":
        return np.asarray(-(-block.heads // degrees.tp) * block.head_dim)
    if name == KEY:  # each rank has at least one group of them
        groups = np.maximum(-(-block.extents["mixer_groups"] // degrees.tp), 1)
        return np.asarray(groups * block.extents["mixer_state"])
    if name == VALUE:
        heads = -(-block.extents[HEADS] // degrees.tp)
        return np.asarray(heads * block.extents["mixer_head_dim"])
    full = block.extents[name]
    if name == "expert_ffn":
        return held_width(full, degrees)
    return -(-full // degrees.tp) if name in ON_TP else np.asarray(full)


def elements(tensor: Tensor, block: Block, degrees: Degrees) -> Array:
    """Local elements of an activation."""
    placed = natural(tensor, sequence_parallel=degrees.sequence_parallel)
    if placed is Placement.ROUTED:
        count = routed_rows(block, degrees) * tensor.copies
    else:
        count = tokens(degrees, split=placed is Placement.SEQUENCE) * tensor.copies
    for name in tensor.dims:
        if name not in ROWS:
            count = count * extent(name, block, degrees)
    return np.asarray(count)


def element_bytes(tensor: Tensor, precision: Precision) -> float:
    """Bytes of one element of a saved tensor."""
    if tensor.element is Element.MASK:
        return 1.0
    return 4.0 if tensor.element is Element.FP32 else precision.activation.bytes


def tensor_bytes(
    tensor: Tensor, block: Block, degrees: Degrees, precision: Precision
) -> Array:
    return elements(tensor, block, degrees) * element_bytes(tensor, precision)


def entry_bytes(block: Block, degrees: Degrees, precision: Precision) -> Array:
    """Bytes of a block's input: what full recompute keeps."""
    if block.entry is None:
        return np.zeros(())
    return tensor_bytes(block.entry, block, degrees, precision)


def product_shape(
    operator: Operator, block: Block, degrees: Degrees
) -> tuple[Array, Array, Array]:
    """Local (m, n, k) of a matrix product's forward; of one expert's, on average."""
    columns = [extent(name, block, degrees) for name in operator.columns]
    n = np.asarray(sum(columns))
    assert operator.contracted is not None, "a product sums over something"
    if operator.kind is Kind.GROUPED_MATMUL:
        rows = routed_rows(block, degrees) / held_experts(block, degrees)
        return rows, n, extent(operator.contracted, block, degrees)
    # A weight that every tp rank has whole meets just the rank's part of the sequence.
    whole = has_whole_weight(operator)
    m = rows_of(operator, degrees, split=whole and degrees.sequence_parallel)
    return m, n, extent(operator.contracted, block, degrees)


def parameters(operator: Operator, block: Block, degrees: Degrees) -> Array:
    """Parameters of an operator that one rank holds: of the tp group, or of experts."""
    count: Array = np.zeros(())
    if operator.vectors:
        width = extent(operator.vector_dim, block, degrees)
        count = np.asarray(operator.vectors * width)
    if operator.shared:
        return np.zeros(np.shape(degrees.tp))
    if not operator.has_weight:
        return count
    columns = [extent(name, block, degrees) for name in operator.columns]
    n = np.asarray(sum(columns))
    assert operator.contracted is not None, "a weight sums over something"
    weight = n * extent(operator.contracted, block, degrees)
    weight = weight + n if operator.bias else weight
    if operator.kind is Kind.GROUPED_MATMUL:
        weight = weight * held_experts(block, degrees)
    return np.asarray(count + weight)


def summands(operator: Operator, block: Block, degrees: Degrees) -> Array:
    """Of `parameters`, those that every tp rank has whole and sees a part of: the
    gradient of each rank is a summand."""
    held = parameters(operator, block, degrees)
    nothing = np.zeros_like(held)
    split = np.asarray(degrees.tp) > 1
    if operator.vector_dim in OF_ONE_HEAD:
        return np.where(split, held, nothing)
    if operator.vectors and operator.vector_dim in ON_TP:
        return nothing  # each rank has its own
    if not degrees.sequence_parallel or operator.kind is Kind.GROUPED_MATMUL:
        return nothing  # experts have ranks of their own
    if not operator.has_weight or has_whole_weight(operator):
        return np.where(split, held, nothing)
    on_rows = operator.contracted in ON_TP and operator.bias
    return np.where(split, block.extents["hidden"] if on_rows else 0, nothing)


def forward_collectives(
    operator: Operator, block: Block, degrees: Degrees, precision: Precision
) -> Iterator[Collective]:
    """What the tp group communicates in an operator's forward."""
    sp = degrees.sequence_parallel
    for tensor in operator.inputs:
        have = natural(tensor, sequence_parallel=sp)
        kind = redistribute(have, _wanted(operator, have))
        if kind:
            yield _collective(kind, tensor, block, degrees, precision)
    kind = redistribute(
        made(operator, sp), natural(operator.output, sequence_parallel=sp)
    )
    if kind:
        yield _collective(kind, operator.output, block, degrees, precision)
    if operator.kind is Kind.CROSS_ENTROPY:
        yield from _statistics(operator, degrees)


def backward_collectives(
    operator: Operator, block: Block, degrees: Degrees, precision: Precision
) -> Iterator[Collective]:
    """What the tp group communicates in an operator's backward.

    Under sequence parallelism the column-split product gathers its saved input once
    more for the weight gradient, behind the input gradient (Korthikanti, 4.2.2), whose
    sum travels beside the weight gradient; a frozen weight has none.
    """
    if not operator.has_backward:
        return
    sp = degrees.sequence_parallel
    out = natural(operator.output, sequence_parallel=sp)
    if made(operator, sp) is Placement.PARTIAL:
        kind = redistribute(out, Placement.WHOLE)
        if kind:
            yield _collective(kind, operator.output, block, degrees, precision)
    for tensor in operator.inputs:
        have = natural(tensor, sequence_parallel=sp)
        if _wanted(operator, have) is have and have is not Placement.WHOLE:
            continue
        if not splits_columns(operator):
            continue
        again = redistribute(have, Placement.WHOLE)
        if again and not operator.frozen:
            gathered = _collective(again, tensor, block, degrees, precision)
            yield replace(gathered, hidden=True, beside=True)
        kind = redistribute(Placement.PARTIAL, have)
        if kind:
            sent = _collective(kind, tensor, block, degrees, precision)
            yield replace(sent, beside=not operator.frozen)


def has_whole_weight(operator: Operator) -> bool:
    """Whether every tp rank has the whole weight of a product: a router's."""
    return not ON_TP & {operator.contracted, *operator.columns}


def splits_columns(operator: Operator) -> bool:
    return operator.has_weight and bool(ON_TP & set(operator.columns))


def _wanted(operator: Operator, have: Placement) -> Placement:
    return Placement.WHOLE if splits_columns(operator) else have


def made(operator: Operator, sequence_parallel: bool) -> Placement:
    """How an operator's output comes out of it, before it is handed on."""
    if operator.has_weight and operator.contracted in ON_TP:
        return Placement.PARTIAL
    return natural(operator.output, sequence_parallel=sequence_parallel)


def _collective(
    kind: str,
    tensor: Tensor,
    block: Block,
    degrees: Degrees,
    precision: Precision,
) -> Collective:
    full = tokens(degrees, split=False) * tensor.copies
    for name in tensor.dims:
        if name not in ROWS:
            full = full * extent(name, block, degrees)
    size = np.asarray(full * precision.activation.bytes)
    return Collective(kind=kind, size_bytes=size)


def _statistics(operator: Operator, degrees: Degrees) -> Iterator[Collective]:
    """Of a vocabulary-parallel loss: row maxima, then sums and targets, in fp32."""
    for numbers in (1, 2):
        rows = rows_of(operator, degrees, split=False)
        size = np.asarray(rows * numbers * Format.FP32.bytes)
        yield Collective(kind="all_reduce", size_bytes=size)


def local_shape(
    operator: Operator, block: Block, degrees: Degrees
) -> tuple[str, tuple[Any, ...]]:
    """The kind, and the dimensions as arrays over *degrees*, of an operator's sample.

    The clocks name what they measure by the same `operator_shape`.
    """
    return operator_shape(
        operator,
        block,
        batch=cast(int, degrees.micro_batch),
        rows=cast(int, _rows(operator, block, degrees)),
        extent=lambda name: cast(int, extent(name, block, degrees)),
        held=cast(int, _held(block, degrees)),
    )


def _held(block: Block, degrees: Degrees) -> Any:
    return held_experts(block, degrees) if "experts" in block.extents else 1


def _rows(operator: Operator, block: Block, degrees: Degrees) -> Array:
    if operator.kind in (Kind.DISPATCH, Kind.COMBINE):
        return sent_rows(block, degrees)
    if "routed" in worked_on(operator).dims:
        return routed_rows(block, degrees)
    return rows_of(operator, degrees, split=splits_rows(operator, degrees))


def splits_rows(operator: Operator, degrees: Degrees) -> bool:
    """Whether it works on a tp rank's own rows, or on those of the whole group."""
    if operator.kind is Kind.MATMUL:  # gathered before, or scattered after, unless
        return degrees.sequence_parallel and has_whole_weight(operator)
    if made(operator, degrees.sequence_parallel) is Placement.PARTIAL:
        return False
    placed = natural(worked_on(operator), sequence_parallel=degrees.sequence_parallel)
    return placed is Placement.SEQUENCE


def worked_on(operator: Operator) -> Tensor:
    """The tensor whose elements an operator goes through."""
    reads = operator.kind is Kind.CROSS_ENTROPY
    return operator.inputs[0] if reads else operator.output


def attended(operator: Operator, block: Block, degrees: Degrees) -> tuple[int, bool]:
    """How many keys a query of attention looks at, at most; and whether of those just
    the ones before it: a window shorter than the sequence is a band, of which no half
    is masked."""
    share = operator.rows if operator.keys is None else operator.keys
    every = int(scaled(np.asarray(degrees.seq_len), share))
    keys = min(block.window or every, every)
    return keys, operator.causal and keys == every


def is_whole(operator: Operator, block: Block, degrees: Degrees) -> Any:
    """Where attention is that of its sample, or a share of it: to all tokens, or to
    all before, without a window."""
    keys, causal = attended(operator, block, degrees)
    every = causal or (not operator.causal and keys == degrees.seq_len)
    own = operator.keys in (None, operator.rows)
    return np.asarray(every and own and degrees.flash_attention)
