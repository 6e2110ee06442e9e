"""What of a module tensor parallelism can split: pairs of products around a region.

    column   linear layers that read one value: queries, keys, values (also side by side
             in one layer); up, gate
    inside   attention, or functions of each element by itself
    table    of biases that attention adds, a column for each head; several layers may
             read what it gives
    row      the linear layer that takes what comes out: projection, down

Whether the module's own code runs with a part of the heads and widths is tried on the
meta device, with narrower weights: shapes must come out right, and attention must see
fewer heads, each as wide as before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import gcd, prod
from typing import Final

from profiles.models import (
    SPLIT_KEY,
    SPLIT_MLP,
    SPLIT_QUERY,
    Operator,
    SplitLayer,
)
from profiles.trace.layers import layers_of
from profiles.trace.routed import NAME as ROUTED
from profiles.trace.steps import Parameter, Step, Trace

MOST: Final = 64  # ways
# What sees more than one element of a row, beside attention.
_ALONG: Final = frozenset(
    (
        *("layer_norm", "rms_norm", "group_norm", "mean", "sum", "var", "cumsum"),
        *("sort", "topk", "max", "min", "norm", "log_softmax", "linalg_vector_norm"),
    )
)
_PRODUCTS: Final = ("matmul", "bmm", "baddbmm", "einsum")
ATTENTION: Final = "scaled_dot_product_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A region that is split: its steps, by name.

    `columns` say which dimensions each linear layer's output is, `inside` are the
    values between, `row` takes them. `ways` is what all widths and heads are multiples
    of.
    """

    row: str
    columns: Mapping[str, tuple[str, ...]]
    inside: Mapping[str, tuple[str, int]]
    extents: Mapping[str, int]
    ways: int
    layers: Mapping[str, SplitLayer] = field(default_factory=dict)  # by weight

    def applied(self, step: Step, made: Operator) -> Operator:
        """The operator of *step*, in the dimensions that are split."""
        if step.name in self.columns:
            return replace(made, columns=self.columns[step.name])
        if step.name == self.row:
            return replace(made, contracted=SPLIT_MLP if self.is_mlp else SPLIT_QUERY)
        return made

    @property
    def is_mlp(self) -> bool:
        return SPLIT_MLP in self.extents


def degrees_of(splits: Sequence[Split], trace: Trace) -> tuple[int, ...]:
    """Degrees of tensor parallelism that divide every width; none where less than half
    of the weights are in what is split."""
    held = {one.name: one for one in trace.parameters}
    split = sum(held[name].elements for one in splits for name in one.layers)
    apart = {
        name
        for step in trace.steps
        if step.function.startswith("embedding") or step.function == ROUTED
        for name in step.parameters
    }
    weights = sum(
        one.elements
        for one in trace.parameters
        if len(one.shape) > 1 and one.name not in apart
    )
    if not splits or 2 * split < weights:
        return ()
    ways = gcd(*(one.ways for one in splits))
    return tuple(one for one in range(2, min(ways, MOST) + 1) if ways % one == 0)


def splits_of(trace: Trace) -> tuple[Split, ...]:
    """Every region of *trace* that can be split, in order."""
    steps = {one.name: one for one in trace.steps}
    held = {one.name: one for one in trace.parameters}
    users: dict[str, set[str]] = defaultdict(set)
    for step in trace.steps:
        for value in step.reads:
            users[value].add(step.name)
    layers = [{trace.steps[one].name for one in some} for some in layers_of(trace).body]
    regions = [_Region(step, steps, held, users) for step in trace.steps]
    found = [
        one
        for one in regions
        if one.grown() and any(one.in_layer <= layer for layer in layers)
    ]
    open_ones = True
    while open_ones:  # nobody else reads what is split
        own = {name for one in found for name in one.own}
        closed = [one for one in found if one.read_by <= own]
        found, open_ones = closed, len(closed) < len(found)
    splits = (one.split() for one in found)
    return tuple(one for one in splits if one is not None)


def is_linear(step: Step) -> bool:
    """Whether it is a linear layer's, called by itself."""
    return (step.function, step.kind) in (("linear", "Linear"), ("addmm", "Conv1D"))


def _is_table(step: Step) -> bool:
    return step.function == "embedding" and step.kind == "Embedding"


class _Region:
    """What lies before one linear layer, as far back as others."""

    def __init__(
        self,
        row: Step,
        steps: Mapping[str, Step],
        held: Mapping[str, Parameter],
        users: Mapping[str, set[str]],
    ) -> None:
        self.row, self.steps, self.held, self.users = row, steps, held, users
        self.columns: dict[str, Step] = {}
        self.inside: dict[str, Step] = {}
        self.tables: dict[str, Step] = {}

    def grown(self) -> bool:
        """Whether it is one, as far as what lies in it goes."""
        if not is_linear(self.row) or len(self.row.reads) != 1:
            return False
        return self._walked() and bool(self.columns)

    @property
    def own(self) -> set[str]:
        """Its steps that read what is split."""
        return {*self.inside, self.row.name}

    @property
    def read_by(self) -> set[str]:
        """All that read what is split."""
        made = (*self.columns, *self.inside, *self.tables)
        return set().union(*(self.users[name] for name in made))

    @property
    def in_layer(self) -> set[str]:
        """What a layer has for itself: all but what tables give."""
        given = set(self.tables)
        for name in sorted(self.inside, key=list(self.steps).index):
            reads = [one for one in self.inside[name].reads if self._trains(one)]
            if reads and given.issuperset(reads):
                given.add(name)
        return {*self.columns, *self.own} - given

    def split(self) -> Split | None:
        """The region, where its widths are alike."""
        attends = [one for one in self.inside.values() if self._attends(one)]
        if attends:
            return self._attention(attends)
        return None if self.tables else self._mlp()

    def _walked(self) -> bool:
        waiting = list(self.row.reads)
        while waiting:
            name = waiting.pop()
            step = self.steps.get(name)
            if name in self.columns or name in self.inside or name in self.tables:
                continue
            if step is None:
                return False
            if not step.trains:
                continue  # a mask, angles
            if is_linear(step):
                self.columns[name] = step
            elif _is_table(step):
                self.tables[name] = step
            elif step.parameters or step.function in _ALONG or not step.known:
                return False
            else:
                self.inside[name] = step
                waiting += step.reads
        return True

    def _trains(self, name: str) -> bool:
        return name in self.steps and self.steps[name].trains

    @staticmethod
    def _attends(step: Step) -> bool:
        return step.function == ATTENTION or step.function in _PRODUCTS

    def _attention(self, attends: Sequence[Step]) -> Split | None:
        width = self._width(self.row, 1)
        parts = self._side_by_side(attends)
        if parts is None:
            return None
        heads = {one for step in attends for one in _heads(step)}
        columns = {name: self._width(one, 0) for name, one in self.columns.items()}
        outer = {*(parts or columns.values()), width}
        ways = gcd(*outer, *heads)
        tables = {self._width(one, 1) for one in self.tables.values()}
        if len(outer) > 2 or ways < 2 or not tables <= {min(heads), max(heads)}:
            return None
        named = {one: SPLIT_QUERY if one == width else SPLIT_KEY for one in outer}
        names = {
            name: tuple(named[one] for one in parts or (columns[name],))
            for name in self.columns
        }
        extents = {SPLIT_QUERY: width, SPLIT_KEY: min(outer)}
        return self._made(names, extents, SPLIT_QUERY, ways)

    def _side_by_side(self, attends: Sequence[Step]) -> tuple[int, ...] | None:
        """Widths of queries, keys and values in the columns of the one layer that makes
        them; none where each has a layer, None where it is not seen how they lie."""
        if len(self.columns) > 1:
            return ()
        (name,) = self.columns
        shapes, lies = (attends[0].numbers.get(one) for one in ("shapes", "lies"))
        if not isinstance(shapes, tuple) or not isinstance(lies, tuple):
            return None
        if len(attends) > 1 or attends[0].numbers["operands"] != (name,) * 3:
            return None
        widths = tuple(one[1] * one[-1] for one in shapes)
        begins = (0, *accumulate(widths[:-1]))
        apart = tuple(
            (start, one[-1]) for start, one in zip(begins, shapes, strict=True)
        )
        whole = sum(widths) == self._width(self.columns[name], 0)
        return widths if whole and lies == apart else None

    def _mlp(self) -> Split | None:
        width = self._width(self.row, 1)
        alone = all(
            len(set(map(prod, (one.shape, *one.read_shapes)))) == 1 or not one.reads
            for one in self.inside.values()
        )
        even = all(self._width(one, 0) == width for one in self.columns.values())
        softmax = any(one.function == "softmax" for one in self.inside.values())
        if not alone or not even or softmax or width < 2:
            return None
        names = dict.fromkeys(self.columns, (SPLIT_MLP,))
        return self._made(names, {SPLIT_MLP: width}, SPLIT_MLP, width)

    def _made(
        self,
        names: Mapping[str, tuple[str, ...]],
        extents: Mapping[str, int],
        between: str,
        ways: int,
    ) -> Split:
        layers = [self._layer(self.row, "row")]
        for name, one in self.columns.items():
            parts = tuple(extents[dim] for dim in names[name])
            layers.append(self._layer(one, "column", parts if len(parts) > 1 else ()))
        layers += [self._layer(one, "column") for one in self.tables.values()]
        values = (*self.columns, *self.inside, *self.tables)
        return Split(
            row=self.row.name,
            columns=names,
            inside=dict.fromkeys(values, (between, extents[between])),
            extents=extents,
            ways=ways,
            layers=dict(layers),
        )

    def _layer(
        self, step: Step, style: str, parts: tuple[int, ...] = ()
    ) -> tuple[str, SplitLayer]:
        weight = self._weight(step)
        path = weight.rpartition(".")[0]
        return weight, SplitLayer(path=path, style=style, parts=parts)

    def _weight(self, step: Step) -> str:
        return next(one for one in step.parameters if len(self.held[one].shape) > 1)

    def _width(self, step: Step, side: int) -> int:
        """Of a linear layer's columns (0) or rows; of a table, as it lies."""
        turned = step.kind == "Conv1D"
        return self.held[self._weight(step)].shape[1 - side if turned else side]


def _heads(step: Step) -> tuple[int, ...]:
    """Heads of queries and of keys; what products of two activations have for them."""
    shapes = step.numbers.get("shapes")
    if isinstance(shapes, tuple):
        return tuple(one[1] for one in shapes[:2])
    return tuple(one[1] if len(one) > 3 else one[0] for one in step.read_shapes)


def split_layers(splits: Sequence[Split]) -> tuple[SplitLayer, ...]:
    """Every layer that is split, once."""
    return tuple(
        dict.fromkeys(one for split in splits for one in split.layers.values())
    )
