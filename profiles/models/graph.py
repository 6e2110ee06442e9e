"""`ModelGraph`: a model as blocks of operators; equal blocks are stored once.

A block is a layer of the layout: the embedding, each transformer layer, the final
norm and the head. Inside, a `networkx.DiGraph` holds the order: nodes are operator
names (attribute `operator`), edges the tensors they hand on (attribute `tensor`).

`Operator`: one mathematical step of a network, in named dimensions.

Nothing here knows a degree of parallelism. A dimension has a name (`batch`,
`sequence`, `hidden`, `query`, `ffn`, `vocab` …) and the block that holds the operator
says how long it is; how a name is split over a mesh is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from profiles.errors import InvalidSpec

if TYPE_CHECKING:
    import networkx as nx


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


PRODUCTS = frozenset({Kind.MATMUL, Kind.GROUPED_MATMUL})
MIXERS = frozenset({Kind.ATTENTION, Kind.SCAN})  # what tokens tell each other in


class Element(StrEnum):
    """The number that a saved tensor is made of."""

    ACTIVATION = "activation"  # the precision policy's activation format
    FP32 = "fp32"
    MASK = "mask"  # one byte: a dropout mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An activation: the product of its named dimensions, `copies` times.

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

    @property
    def has_weight(self) -> bool:
        return self.kind in PRODUCTS or self.kind is Kind.EMBEDDING

    @property
    def is_norm(self) -> bool:
        return self.kind is Kind.ELEMENTWISE and self.function.endswith("norm")

    @property
    def backward_launches(self) -> float:
        return self.launches - self.without_gradient

    @property
    def has_backward(self) -> bool:
        """Whether anything is to be done in the backward pass: not for a frozen table,
        which has nothing before it."""
        return not (self.frozen and self.kind is Kind.EMBEDDING)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One distinct layer: operators in order, and how long each dimension is.

    `extents` holds every dimension but `batch` and `sequence`, which the job gives.
    `entry` is the tensor that comes from the layer before (None for the first).
    `heads`, `kv_heads` and `head_dim` describe its attention, if it has one; where
    keys and values are unlike, `head_dim` is their mean. `capacity` is the share of an
    even spread that each of its experts takes (None: whatever comes).
    """

    name: str
    operators: tuple[Operator, ...]
    extents: Mapping[str, int]
    entry: Tensor | None
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    window: int | None = None
    causal: bool = True
    capacity: float | None = None

    @cached_property
    def alike(self) -> tuple[Operator, ...]:
        """The operators, as one object for all blocks that have equal ones."""
        return _one_of_equals(self.operators)

    @cached_property
    def graph(self) -> nx.DiGraph:
        """Operators as nodes, tensors handed on as edges.

        Raises InvalidSpec if an operator reads what nobody before it makes.
        """
        import networkx as nx  # slow to load, and planning seldom walks the graph

        made: dict[str, str] = {}
        graph = nx.DiGraph()
        for operator in self.operators:
            graph.add_node(operator.name, operator=operator)
            for tensor in operator.inputs:
                if tensor.name in made:
                    graph.add_edge(made[tensor.name], operator.name, tensor=tensor)
                elif self.entry is None or tensor.name != self.entry.name:
                    raise InvalidSpec(
                        f"{self.name}.{operator.name} reads {tensor.name!r}, "
                        "which no operator before it makes"
                    )
            made[operator.output.name] = operator.name
        return graph

    def operator(self, name: str) -> Operator:
        return next(item for item in self.operators if item.name == name)


ENDS = ("embedding", "final_norm", "head")


@lru_cache(maxsize=1024)
def _one_of_equals(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    return operators


@dataclass(frozen=True, kw_only=True)
class ModelGraph:
    """Blocks in model order: (block, how often it repeats in a row).

    `tied` names pairs of (block, operator) that hold one parameter. `tail` is how many
    numbered layers the head is as much work as, where a pipeline should allow for it.
    """

    name: str
    blocks: tuple[tuple[Block, int], ...]
    tied: tuple[tuple[tuple[str, str], ...], ...] = ()
    tail: int = 0

    @cached_property
    def layer_names(self) -> tuple[str, ...]:
        """Every layer's name in model order: `embedding`, `0`, `1` …, `head`."""
        names: list[str] = []
        numbered = 0
        for block, count in self.blocks:
            if block.name in ENDS:
                names.append(block.name)
                continue
            names.extend(str(numbered + index) for index in range(count))
            numbered += count
        return tuple(names)

    @cached_property
    def layers(self) -> tuple[Block, ...]:
        """The block of every layer, in the order of `layer_names`."""
        return tuple(block for block, count in self.blocks for _ in range(count))

    @cached_property
    def layer_blocks(self) -> Mapping[str, Block]:
        """The block of every layer, by its name."""
        return dict(zip(self.layer_names, self.layers, strict=True))

    @cached_property
    def body(self) -> int:
        """How many numbered layers there are."""
        return sum(name.isdigit() for name in self.layer_names)

    @cached_property
    def runs(self) -> tuple[tuple[Block, int], ...]:
        """The numbered layers: (block, how often it repeats in a row)."""
        return tuple(one for one in self.blocks if one[0].name not in ENDS)

    @cached_property
    def kinds(self) -> Mapping[str, Block]:
        """The distinct blocks of the numbered layers, by name."""
        return {block.name: block for block, _ in self.runs}

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How many numbered layers there are of each kind."""
        found = dict.fromkeys(self.kinds, 0)
        for block, count in self.runs:
            found[block.name] += count
        return found

    @cached_property
    def turn(self) -> int:
        """After how many layers their kinds repeat: 1 where they change once or never,
        0 where they repeat at no time."""
        if len(self.runs) <= 2:
            return 1
        order = [block.name for block, count in self.runs for _ in range(count)]
        for turn in range(2, len(order) // 2 + 1):
            if order[turn:] == order[:-turn]:
                return turn
        return 0

    @property
    def even(self) -> bool:
        """Whether numbered layers are alike, so that equal counts are equal work."""
        return len(self.runs) == 1 and not self.tail

    @property
    def hidden(self) -> int:
        """Width of what layers hand on."""
        return self.runs[0][0].extents["hidden"]

    def distinct(self) -> Iterable[Block]:
        """Every block once, in the order in which they first come."""
        return {block.name: block for block, _ in self.blocks}.values()

    def block(self, name: str) -> Block:
        return next(block for block, _ in self.blocks if block.name == name)
