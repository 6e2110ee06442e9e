"""`Operator`: one mathematical step of a network, in named dimensions.

Nothing here knows a degree of parallelism. A dimension has a name (`batch`,
`sequence`, `hidden`, `query`, `ffn`, `vocab` …) and the block that holds the operator
says how long it is; how a name is split over a mesh is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What an operator computes, which is what decides how it is priced."""

    MATMUL = "matmul"  # rows × contracted times contracted × columns
    ATTENTION = "attention"  # softmax(q kᵀ) v over heads
    SCAN = "scan"  # a state carried along the sequence, chunk by chunk
    ELEMENTWISE = "elementwise"  # norms too: bytes, not FLOPs
    EMBEDDING = "embedding"  # rows of a table
    CROSS_ENTROPY = "cross-entropy"  # logits → loss
    GROUPED_MATMUL = "grouped-matmul"  # each expert's rows times its own weight
    DISPATCH = "dispatch"  # tokens sorted by expert and sent to its rank
    COMBINE = "combine"  # what the experts made, sent back and summed by token


# Widths of code that was not written for tensor parallelism, which splits them: of
# queries (and what attention gives), of keys or values, and inside an MLP.
SPLIT_QUERY, SPLIT_KEY, SPLIT_MLP = "split_query", "split_key", "split_mlp"
PRODUCTS = frozenset({Kind.MATMUL, Kind.GROUPED_MATMUL})
MIXERS = frozenset({Kind.ATTENTION, Kind.SCAN})  # what tokens tell each other in


class Element(StrEnum):
    """The number that a saved tensor is made of."""

    ACTIVATION = "activation"  # the precision policy's activation format
    FP32 = "fp32"
    MASK = "mask"  # one byte: a dropout mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An activation: the product of its named dimensions, `copies` times; where there
    are not as many rows as tokens, `copies` says how many there are for each.

    Two saved tensors of one name are one storage: a norm's output that both the norm
    and the next product hold is counted once.
    """

    name: str
    dims: tuple[str, ...]
    element: Element = Element.ACTIVATION
    copies: float = 1.0
    internal: bool = False  # made inside its operator, not handed on


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One step: reads *inputs*, makes *output*, keeps *saves* for backward.

    `columns` are the widths that the weight adds (laid side by side), `contracted`
    the width it sums over. `forward_elements` and `backward_elements` are what a
    memory-bound operator reads and writes, in elements per element of its output.
    `kernels` is how many launches its forward takes in eager mode, `launches` the
    host's work in units of an ordinary operator's; `without_gradient` of it (integers,
    counts, copies of them) has no backward. `function` says what is measured for it
    (`profiles.samples.operator_keys`): matmul, layernorm, gelu …
    The parameters of a `frozen` one are not trained: they have no gradient. Those of a
    `shared` one are another operator's of the same block.

    `rows` are its rows for each token of the job, where they are not as many: 114/512
    for a decoder of 114 tokens beside 512 of the job, the positions of a picture that
    is one token. Its tensors have as many `copies`. Attention looks at `keys` rows a
    token, where those are not its own, and at the ones before alone if it is `causal`.

    `sizes` are what its kernel is called with for one sample, where rows and widths do
    not say it (`profiles.samples.operator_keys`): of convolutions and poolings.
    """

    name: str
    kind: Kind
    function: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    columns: tuple[str, ...] = ()
    contracted: str | None = None
    bias: bool = False
    vectors: int = 0  # parameter vectors (of norms), each as wide as `vector_dim`
    vector_dim: str = "hidden"
    saves: tuple[Tensor, ...] = ()
    forward_elements: float = 0.0
    backward_elements: float = 0.0
    kernels: int = 1
    launches: float = 1.0
    without_gradient: float = 0.0
    frozen: bool = False
    shared: bool = False
    rows: float = 1.0
    keys: float | None = None
    causal: bool = True
    sizes: tuple[int, ...] = ()

    @property
    def has_weight(self) -> bool:
        return self.kind in PRODUCTS or self.kind is Kind.EMBEDDING

    @property
    def convolves(self) -> bool:
        """Whether it is a product over windows: `contracted` is the channels of one
        group times the positions of a window, `rows` the positions that it makes."""
        return self.function == "convolution"

    @property
    def is_norm(self) -> bool:
        own = self.function.endswith("norm") and self.function != "batchnorm"
        return self.kind is Kind.ELEMENTWISE and own

    @property
    def backward_launches(self) -> float:
        return self.launches - self.without_gradient

    @property
    def has_backward(self) -> bool:
        """Whether anything is to be done in the backward pass: not for a frozen table,
        which has nothing before it."""
        return not (self.frozen and self.kind is Kind.EMBEDDING)
