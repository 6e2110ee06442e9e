"""What of a module tensor parallelism can split: pairs of products around a region.

    column   linear layers that read one value: queries, keys, values; up, gate
    inside   attention, or functions of each element by itself
    row      the linear layer that takes what comes out: projection, down

Whether the module's own code runs with a part of the heads and widths is tried on the
meta device, with narrower weights: shapes must come out right, and attention must see
fewer heads, each as wide as before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod
from typing import Final

from profiles.models import SPLIT_KEY, SPLIT_MLP, SPLIT_QUERY, Operator
from profiles.trace.layers import layers_of
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

    `columns` say which dimension each linear layer's output is, `inside` are the values
    between, `row` takes them. `ways` is what all widths and heads are multiples of.
    """

    row: str
    columns: Mapping[str, str]
    inside: Mapping[str, tuple[str, int]]
    extents: Mapping[str, int]
    ways: int
    layers: Mapping[str, str] = field(default_factory=dict)  # parameter → style

    def applied(self, step: Step, made: Operator) -> Operator:
        """The operator of *step*, in the dimensions that are split."""
        if step.name in self.columns:
            return replace(made, columns=(self.columns[step.name],))
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
    tables = {
        name
        for step in trace.steps
        if step.function.startswith("embedding")
        for name in step.parameters
    }
    weights = sum(
        one.elements
        for one in trace.parameters
        if len(one.shape) > 1 and one.name not in tables
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
    found = (_Region(step, steps, held, users).split() for step in trace.steps)
    layers = [{trace.steps[one].name for one in some} for some in layers_of(trace).body]
    return tuple(
        one
        for one in found
        if one is not None
        and any({one.row, *one.columns, *one.inside} <= layer for layer in layers)
    )


def is_linear(step: Step) -> bool:
    """Whether it is a linear layer's, called by itself."""
    return step.function == "linear" and step.kind == "Linear"


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

    def split(self) -> Split | None:
        """The region, where it is one."""
        if not is_linear(self.row) or len(self.row.reads) != 1:
            return None
        if not self._walked() or not self.columns or not self._closed():
            return None
        attends = [one for one in self.inside.values() if self._attends(one)]
        return self._attention(attends) if attends else self._mlp()

    def _walked(self) -> bool:
        waiting = list(self.row.reads)
        while waiting:
            name = waiting.pop()
            step = self.steps.get(name)
            if name in self.columns or name in self.inside:
                continue
            if step is None:
                return False
            if not step.trains:
                continue  # a mask, angles
            if is_linear(step):
                self.columns[name] = step
            elif step.parameters or step.function in _ALONG or not step.known:
                return False
            else:
                self.inside[name] = step
                waiting += step.reads
        return True

    def _closed(self) -> bool:
        """Whether nobody else reads what is split."""
        own = {*self.inside, self.row.name}
        made = (*self.columns, *self.inside)
        return all(self.users[name] <= own for name in made)

    @staticmethod
    def _attends(step: Step) -> bool:
        return step.function == ATTENTION or step.function in _PRODUCTS

    def _attention(self, attends: Sequence[Step]) -> Split | None:
        width = self._width(self.row, 1)
        heads = [_heads(one) for one in attends]
        outer = {self._width(one, 0) for one in self.columns.values()} | {width}
        ways = gcd(*outer, *(one for pair in heads for one in pair))
        key = min(outer)
        if len(outer) > 2 or ways < 2:
            return None
        names = {
            name: SPLIT_QUERY if self._width(one, 0) == width else SPLIT_KEY
            for name, one in self.columns.items()
        }
        return self._made(
            names, {SPLIT_QUERY: width, SPLIT_KEY: key}, SPLIT_QUERY, ways
        )

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
        names = dict.fromkeys(self.columns, SPLIT_MLP)
        return self._made(names, {SPLIT_MLP: width}, SPLIT_MLP, width)

    def _made(
        self,
        names: Mapping[str, str],
        extents: Mapping[str, int],
        between: str,
        ways: int,
    ) -> Split:
        layers = {self._weight(one): "column" for one in self.columns.values()}
        values = (*self.columns, *self.inside)
        return Split(
            row=self.row.name,
            columns=names,
            inside=dict.fromkeys(values, (between, extents[between])),
            extents=extents,
            ways=ways,
            layers={**layers, self._weight(self.row): "row"},
        )

    def _weight(self, step: Step) -> str:
        return next(one for one in step.parameters if len(self.held[one].shape) > 1)

    def _width(self, step: Step, side: int) -> int:
        return self.held[self._weight(step)].shape[side]


def _heads(step: Step) -> tuple[int, ...]:
    """Heads of queries and of keys; what products of two activations have for them."""
    shapes = step.numbers.get("shapes")
    if isinstance(shapes, tuple):
        return tuple(one[1] for one in shapes[:2])
    return tuple(one[1] if len(one) > 3 else one[0] for one in step.read_shapes)


def styles_of(splits: Sequence[Split]) -> Iterator[tuple[str, str]]:
    """Each split linear layer's path, and how it is split."""
    for split in splits:
        for weight, style in split.layers.items():
            yield weight.rpartition(".")[0], style
