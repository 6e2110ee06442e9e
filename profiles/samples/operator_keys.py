"""What is measured for an operator: the kind and shape of its sample key.

The clocks (`profiles.measure`) and the prices ask this one function, so that what is
measured is what is looked up:

    matmul                       (rows, columns, contracted)
    attention, full-attention    (batch, heads, kv_heads, seq_len, head_dim)
    layernorm, gelu, residual …  (rows, width)
    qk-norm                      (rows × heads, head_dim)
    rotary                       (batch, seq_len, heads, head_dim)
    lookup                       (rows, table rows, width)
    cross-entropy                (rows, columns)
    top-k                        (rows, experts, chosen)
    dispatch, combine            (rows of experts, chosen of a token, width)
    permute, unpermute           (rows of experts, width)
    grouped-matmul               (rows of all experts, experts, columns, contracted)
    convolution-1d, -2d, -3d     (batch, channels, made channels, groups, sides, made
                                 sides, window, stride): the last four a number a side
    max-pool-1d, -2d, -3d        (batch, channels, sides, made sides, window)
    embedding-bag                (batch, rows in a bag, table rows, width)
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from profiles.hardware import Format, Precision
from profiles.models import PRODUCTS, Block, Kind, Operator

Extent = Callable[[str], int]  # local length of a width dimension
ROWS = ("batch", "sequence", "routed")
SIXTEEN_BITS = 2  # bytes
NEVER_NARROW = {"vocab", "experts"}  # columns of the head and of routers

# Before what there is for each side, and how many numbers those are.
SIDES = {"convolution": (3, 4), "max-pool": (1, 3)}
ATTENTION = ("attention", "full-attention")  # causal, and not
OF_HEADS = (*ATTENTION, "rotary", "qk-norm")
CONVOLUTIONS = ("convolution-1d", "convolution-2d", "convolution-3d")

# Of rows that came from other ranks, beside the operator's own: sorted, and back.
SORTED_AGAIN = {"dispatch": "permute", "combine": "unpermute"}
# One per step, over so many parameters of a rank.
STEP_KINDS = ("accumulate", "gradient-norm", "zero-gradient")
# How CPU ranks come to a message, added to its collective's name: soon after the one
# before, or with a product beside it. The name alone is of one that comes long after.
SOON, BESIDE = "+soon", "+product"
GAPS = "gap seconds"  # of a profile's machine: soon, and long after
# Of `fully_shard` on a CPU, in a unit of so many parameters.
UNIT_KINDS = ("unit-pass", "unit-reduce", "unit-gather")


def number_of(operator: Operator, precision: Precision) -> Format:
    """The format that *operator* is priced and measured in: what it multiplies in, or
    that of activations.

    Attention, logits and routers' scores stay in 16 bits where products run in fewer:
    head and router are no Transformer Engine modules in Megatron-Core, and torchtitan
    filters them out.
    """
    attends = operator.kind is Kind.ATTENTION
    if not attends and operator.kind not in PRODUCTS:
        return precision.activation
    wide = attends or NEVER_NARROW & {*operator.columns}
    if wide and precision.matmul.bytes < SIXTEEN_BITS:
        return precision.activation
    return precision.matmul


def operator_shape(
    operator: Operator,
    block: Block,
    *,
    batch: int,
    rows: int,
    extent: Extent,
    held: int = 1,
) -> tuple[str, tuple[int, ...]]:
    """The (kind, shape) of *operator* on one rank.

    *batch* is in sequences, *rows* in tokens (those that this operator works on; a
    token as often as it is routed), *extent* says how long a width dimension is on the
    rank, and *held* how many experts it holds.

    >>> from profiles.models.catalog import model
    >>> from profiles.models.job import Job
    >>> tiny = model("gpt-tiny")
    >>> job = Job(model="gpt-tiny", spec=tiny.spec, seq_len=256, global_batch=8)
    >>> layer = job.graph.block("layer")
    >>> operator_shape(layer.operator("qkv"), layer, batch=2, rows=512,
    ...                extent=layer.extents.__getitem__)
    ('matmul', (512, 768, 256))
    """
    shape: tuple[int, ...]
    kind = kind_of(operator)
    if operator.sizes:
        shape = (batch, *operator.sizes)
    elif kind == "matmul":
        shape = (rows, _columns(operator, extent), extent(operator.contracted or ""))
    elif kind in OF_HEADS:
        shape = _of_heads(kind, block, batch, rows, extent)
    elif kind == "lookup":
        contracted = extent(operator.contracted or "")
        shape = (rows, contracted, _columns(operator, extent))
    elif kind == "grouped-matmul":
        product = _columns(operator, extent), extent(operator.contracted or "")
        shape = (rows, held, *product)
    elif kind == "top-k":
        shape = (rows, extent("experts"), extent("routed"))
    elif kind in SORTED_AGAIN:
        shape = (rows, extent("routed"), extent(operator.output.dims[-1]))
    elif kind == "cross-entropy":
        shape = (rows, _width(operator.inputs[0].dims, extent))
    else:
        shape = (rows, _width(operator.output.dims, extent))
    return kind, shape


def kind_of(operator: Operator) -> str:
    """What *operator* is measured as: its function, of as many dimensions as its sizes
    have, or of as many keys."""
    function = operator.function
    if function in SIDES and operator.sizes:
        channels, numbers = SIDES[function]
        return f"{function}-{(len(operator.sizes) - channels) // numbers}d"
    if function == "attention" and not operator.causal:
        return "full-attention"
    return function


def _of_heads(
    kind: str, block: Block, batch: int, rows: int, extent: Extent
) -> tuple[int, ...]:
    heads = extent("query") // block.head_dim
    kv_heads = extent("key_value") // (2 * block.head_dim)
    if kind in ATTENTION:
        return (batch, heads, kv_heads, rows // batch, block.head_dim)
    if kind == "rotary":
        return (batch, rows // batch, heads + kv_heads, block.head_dim)
    return (rows * (heads + kv_heads), block.head_dim)


def _columns(operator: Operator, extent: Extent) -> int:
    return sum(extent(name) for name in operator.columns)


def _width(dims: tuple[str, ...], extent: Extent) -> int:
    return prod(extent(name) for name in dims if name not in ROWS)
