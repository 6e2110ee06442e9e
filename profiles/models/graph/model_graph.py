"""`ModelGraph`: a model as blocks of operators; equal blocks are stored once.

A block is a layer of the layout: the embedding, each transformer layer, the final
norm and the head. Inside, a `networkx.DiGraph` holds the order: nodes are operator
names (attribute `operator`), edges the tensors they hand on (attribute `tensor`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING

from profiles.errors import InvalidSpec
from profiles.models.graph.operator import Operator, Tensor

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, kw_only=True)
class Block:
    """One distinct layer: operators in order, and how long each dimension is.

    `extents` holds every dimension but `batch` and `sequence`, which the job gives.
    `entry` is the tensor that comes from the layer before (None for the first), `reads`
    are tensors of layers further before, by the names under which they are made there.
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
    capacity: float | None = None
    reads: tuple[Tensor, ...] = ()

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
        given = {one.name for one in (self.entry, *self.reads) if one is not None}
        graph = nx.DiGraph()
        for operator in self.operators:
            graph.add_node(operator.name, operator=operator)
            for tensor in operator.inputs:
                if tensor.name in made:
                    graph.add_edge(made[tensor.name], operator.name, tensor=tensor)
                elif tensor.name not in given:
                    raise InvalidSpec(
                        f"{self.name}.{operator.name} reads {tensor.name!r}, "
                        "which no operator before it makes"
                    )
            made[operator.output.name] = operator.name
        return graph

    @property
    def is_plain(self) -> bool:
        """Whether it has a row for each token, and reads nothing but its entry."""
        return not self.reads and all(one.rows == 1 for one in self.operators)

    def operator(self, name: str) -> Operator:
        return next(item for item in self.operators if item.name == name)

    def elements(self, tensor: Tensor) -> float:
        """Of *tensor*, for each token of the job."""
        widths = [part for part in tensor.dims if part not in ROWS]
        whole = prod(self.extent(name) for name in widths)
        return whole if tensor.copies == 1 else whole * tensor.copies

    def extent(self, name: str) -> int:
        """How long a width is, or several side by side."""
        return sum(self.extents[part] for part in name.split("+"))


ENDS = ("embedding", "final_norm", "head")
ROWS = ("batch", "sequence", "routed")
EVERY_OPERATOR = ""  # of a layer, in `ModelGraph.sharing`


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A *tensor* that the layer *source* makes and layers after the next one read, by
    number: it passes all boundaries up to the *last* of them, from the *first* one on
    that it does not pass as the entry of the next layer. `elements` a token."""

    tensor: Tensor
    source: int
    first: int
    last: int
    elements: float

    def passes(self, boundary: int) -> bool:
        """Whether it is handed on from the layer of that number to the next."""
        return self.first <= boundary < self.last


@lru_cache(maxsize=1024)
def _one_of_equals(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    return operators


@dataclass(frozen=True, kw_only=True)
class ModelGraph:
    """Blocks in model order: (block, how often it repeats in a row).

    Parameters that several layers hold: `tied` names groups of (layer, operator) with
    one parameter, `shared` groups of layers of one kind that have all in common.
    `tail` is how many numbered layers the head is as much work as, where a pipeline
    should allow for it. `splits`, where it is not None, are the degrees of tensor
    parallelism above 1 that code which was not written for it runs with, and `whole`
    why there are not more; such code takes whole sequences.
    """

    name: str
    blocks: tuple[tuple[Block, int], ...]
    tied: tuple[tuple[tuple[str, str], ...], ...] = ()
    shared: tuple[tuple[str, ...], ...] = ()
    tail: int = 0
    splits: tuple[int, ...] | None = None
    whole: str = ""

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

    @cached_property
    def sharing(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """Groups of (layer, operator) that hold the same parameters, those of shared
        layers as `EVERY_OPERATOR` of each."""
        whole = (tuple((one, EVERY_OPERATOR) for one in group) for group in self.shared)
        return (*self.tied, *whole)

    @cached_property
    def skips(self) -> tuple[Skip, ...]:
        """What layers read of others than the one before them.

        Raises InvalidSpec if a layer reads what no layer before it makes.
        """
        made: dict[str, int] = {}
        last: dict[str, int] = {}
        found: dict[str, Tensor] = {}
        for number, block in enumerate(self.layers):
            for tensor in block.reads:
                if tensor.name not in made:
                    raise InvalidSpec(
                        f"{self.name}: layer {self.layer_names[number]} reads "
                        f"{tensor.name!r}, which no layer before it makes"
                    )
                found[tensor.name], last[tensor.name] = tensor, number
            for operator in block.operators:
                made.setdefault(operator.output.name, number)
        return tuple(
            Skip(
                tensor=tensor,
                source=made[name],
                first=made[name] + self._ends_in(made[name], tensor),
                last=last[name],
                elements=self.layers[last[name]].elements(tensor),
            )
            for name, tensor in found.items()
        )

    def _ends_in(self, layer: int, tensor: Tensor) -> bool:
        """Whether the *layer* of that number hands *tensor* to the next one."""
        operators = self.layers[layer].operators
        return bool(operators) and operators[-1].output.name == tensor.name

    @cached_property
    def handed_on(self) -> tuple[float, ...]:
        """Elements a token that pass from each layer to the next: the next one's entry,
        and what layers further on read."""
        return tuple(
            (block.elements(block.entry) if block.entry is not None else 0)
            + sum(skip.elements for skip in self.skips if skip.passes(number))
            for number, block in enumerate(self.layers[1:])
        )

    @cached_property
    def narrowest(self) -> float:
        """The least that any two layers hand on, in elements a token."""
        return min(self.handed_on)

    @cached_property
    def is_chain(self) -> bool:
        """Whether layers read the one before them alone, and share weights with none
        but that the ends do with each other."""
        inside = (one for group in self.tied for one, _ in group if one not in ENDS)
        return not (self.shared or self.skips or any(inside))

    @cached_property
    def convolves(self) -> bool:
        """Whether it has convolutions, which no sharding over tp or cp is known of."""
        return any(one.convolves for block, _ in self.blocks for one in block.operators)

    @cached_property
    def alike_in_rows(self) -> bool:
        """Whether all numbered layers have a row for each token, so that a sequence
        can be split over ranks."""
        return self.splits is None and all(block.is_plain for block, _ in self.runs)

    def distinct(self) -> Iterable[Block]:
        """Every block once, in the order in which they first come."""
        return {block.name: block for block, _ in self.blocks}.values()

    def block(self, name: str) -> Block:
        return next(block for block, _ in self.blocks if block.name == name)
