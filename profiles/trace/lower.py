"""A trace as a `ModelGraph`: its layers as blocks, equal ones once.

    embedding    what comes before the first layer
    0, 1, …      the layers (`profiles.trace.layers`)
    final_norm   what comes after the last one, before the largest product
    head         from that product to the loss

Every layer's operators are named within it, by the path of their module. What layers
read of others than the one before are skips.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import prod
from typing import Any, Final

from profiles.models import (
    ENDS,
    Block,
    Kind,
    ModelGraph,
    ModuleSpec,
    Operator,
    Tensor,
)
from profiles.trace.experts import experts_of, extents_of
from profiles.trace.layers import layers_of
from profiles.trace.operators import TABLES, TOKENS, Naming, operator_of, width_of
from profiles.trace.routed import NAME as ROUTED
from profiles.trace.split import Split, split_layers, splits_of
from profiles.trace.steps import Parameter, Step, Trace

SUMMED: Final = 3.0  # elements that adding one gradient to another moves
NOTHING: Final = "pass"  # an end that has nothing to do


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Degrees of tensor parallelism that a module's code runs with, above 1; why there
    are not more; and the numbers in it (`ModuleSpec.counts`) that are a rank's then."""

    degrees: tuple[int, ...] = ()
    whole: str = ""
    counts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer of the graph: its name there, its steps, and its module's path."""

    name: str
    steps: range
    path: str = ""


@dataclass(slots=True)
class _Between:
    """What layers hand on: of each value the layer that makes it; what each reads."""

    home: dict[str, int]
    reads: list[dict[str, tuple[int, ...]]]
    entry: list[str | None]
    skips: set[str] = field(default_factory=set)


def layers_named(trace: Trace) -> list[Layer]:
    """The layers of *trace* as the graph calls them, in order."""
    found = layers_of(trace)
    products = [one for one in found.ending if _is_product(trace.steps[one])]
    last = found.ending.start
    if products:  # to the vocabulary, say
        last = max(products, key=lambda one: trace.steps[one].flops.one)
    body = [Layer(name="", steps=found.beginning)]
    body += map(_layer, found.body, found.paths)
    if not body[0].steps and len(body) > 2:  # an end with nothing to do is no stage
        body.pop(0)
    return [
        replace(body[0], name="embedding"),
        *(replace(one, name=str(number)) for number, one in enumerate(body[1:])),
        Layer(name="final_norm", steps=range(found.ending.start, last)),
        Layer(name="head", steps=range(last, found.ending.stop)),
    ]


def _layer(steps: range, path: str) -> Layer:
    return Layer(name="", steps=steps, path=path)


def spec_of(trace: Trace, parallel: Parallel) -> tuple[ModuleSpec, ModelGraph]:
    """The model that *trace* is, and its graph, with what its code runs with."""
    splits = splits_of(trace) if parallel.degrees else ()
    graph = _Lowering(trace, splits).graph()
    graph = replace(graph, splits=parallel.degrees, whole=parallel.whole)
    bytes_only = dict.fromkeys(one.function for one in trace.steps if not one.known)
    remarks = tuple(
        f"operator {name} is not PyTorch's: it is priced by the bytes that it reads "
        f"and writes; a sample of kind {name!r} in a --profile prices it as measured"
        for name in bytes_only
        if name != ROUTED
    )
    if not trace.loss:
        remarks += (
            f"{trace.name} gives no loss: the mean square of its output stands for it",
        )
    spec = ModuleSpec(
        module=trace.name,
        seq_len=trace.seq_len,
        digest=hashlib.sha256(repr(graph).encode()).hexdigest()[:16],
        split=split_layers(splits),
        counts=parallel.counts,
        own_code=any(one.function == ROUTED for one in trace.steps),
        remarks=(*trace.warnings, *remarks),
    )
    return spec, graph


class _Lowering:
    def __init__(self, trace: Trace, splits: Sequence[Split]) -> None:
        self.trace = trace
        self.layers = layers_named(trace)
        self.parameters = {one.name: one for one in trace.parameters}
        self.sizes = {one.name: (one.elements.one, one.shape) for one in trace.steps}
        self.between = _between(trace, self.layers)
        self.splits = splits
        self.owners: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self.alike = _alike(trace, self.layers)

    def graph(self) -> ModelGraph:
        """The whole of it."""
        blocks = [self._block(number) for number in range(len(self.layers))]
        blocks = self._with_unused(blocks)
        return ModelGraph(
            name=self.trace.name,
            blocks=_folded(blocks),
            tied=tuple(self._tied(blocks)),
            shared=tuple(group for group in self.alike.values() if len(group) > 1),
        )

    def _block(self, number: int) -> Block:
        layer = self.layers[number]
        entry, reads = self.between.entry[number], self.between.reads[number]
        outer = {
            value: "layer_in" if value == entry else f"skip.{value}" for value in reads
        }
        naming = Naming(
            tokens=self.trace.seq_len,
            outer=outer,
            sizes=self.sizes,
            inside=self._inside(layer),
        )
        steps = [self.trace.steps[one] for one in layer.steps]
        made = list(self._operators(layer, steps, naming)) or [self._nothing(number)]
        made = self._kept_here(number, made, naming)
        entering = None
        if entry is not None:
            entering = naming.tensor(entry, prod(reads[entry]), reads[entry])
            naming.widths.found["hidden"] = width_of(reads[entry])
        return Block(
            name=layer.name,
            operators=tuple(made),
            extents={
                "hidden": 1,
                **naming.widths.found,
                **_attention_extents(steps),
                **self._split_extents(layer),
                **extents_of(steps, self.parameters),
            },
            entry=entering,
            **_heads(steps),
            reads=tuple(
                naming.tensor(value, prod(shape), shape)
                for value, shape in reads.items()
                if value != entry
            ),
        )

    def _kept_here(
        self, number: int, made: list[Operator], naming: Naming
    ) -> list[Operator]:
        """Without what the next layer keeps as its input: it is one storage."""
        following = [*self.layers[number + 1 : number + 2]]
        entry = self.between.entry[number + 1] if following else None
        if entry is None or not any(
            saved.value == entry
            for one in following[0].steps
            for saved in self.trace.steps[one].saves
        ):
            return made
        name = naming.local.get(entry)
        return [
            replace(one, saves=tuple(kept for kept in one.saves if kept.name != name))
            for one in made
        ]

    def _operators(
        self, layer: Layer, steps: Sequence[Step], naming: Naming
    ) -> Iterator[Operator]:
        names = _names(layer.path, steps)
        readers = Counter(
            value for step in steps for value in step.reads if step.trains
        )
        for step, name in zip(steps, names, strict=True):
            naming.local[step.name] = (
                f"skip.{step.name}"
                if step.name in self.between.skips
                else f"{name}_out"
            )
            if step.function == ROUTED:
                yield from experts_of(step, name, naming, self.parameters)
                self._own(layer, name, step)
                continue
            if not step.trains and not step.parameters and step.elements.each == 0:
                continue  # made once, of nothing that is trained
            made = self._operator(layer, step, name, naming)
            sums = SUMMED * max(readers[step.name] - 1, 0)  # of readers' gradients
            yield replace(made, backward_elements=made.backward_elements + sums)

    def _operator(
        self, layer: Layer, step: Step, name: str, naming: Naming
    ) -> Operator:
        held, shared = self._own(layer, name, step)
        made = operator_of(step, name, naming, held, shared=shared)
        for split in self.splits:
            made = split.applied(step, made)
        return made

    def _own(self, layer: Layer, name: str, step: Step) -> tuple[list[Parameter], bool]:
        """The parameters that are counted as the step's, and whether its weight is
        another's of the layer."""
        counted, shared = [], False
        for one in step.parameters:
            holders = self.owners[one]
            parameter = self.parameters[one]
            if any(other == layer.name for other, _ in holders):
                shared = shared or len(parameter.shape) > 1
                if len(parameter.shape) > 1:
                    counted.append(parameter)
                continue
            works = step.flops.one or step.function in TABLES
            wide = len(parameter.shape) > 1 and bool(works or not holders)
            if (
                not holders
                or wide
                or layer.name in self.alike.get(_set_of(self, layer), ())
            ):
                counted.append(parameter)
            holders.append((layer.name, name))
        return counted, shared

    def _inside(self, layer: Layer) -> Mapping[str, tuple[str, int]]:
        return {
            step: dimension
            for split in self.splits
            for step, dimension in split.inside.items()
        }

    def _split_extents(self, layer: Layer) -> dict[str, int]:
        names = {self.trace.steps[one].name for one in layer.steps}
        found: dict[str, int] = {}
        for split in self.splits:
            if split.row in names:
                found |= split.extents
        return found

    def _nothing(self, number: int) -> Operator:
        """An end without steps gives on what comes to it."""
        entry, output = self.between.entry[number], Tensor(name="pass_out", dims=TOKENS)
        if entry is not None:
            shape = self.between.reads[number][entry]
            naming = Naming(tokens=self.trace.seq_len, outer={entry: "pass_out"})
            output = naming.tensor(entry, prod(shape), shape)
        return Operator(
            name=NOTHING,
            kind=Kind.ELEMENTWISE,
            function=NOTHING,
            inputs=(),
            output=output,
            kernels=0,
            launches=0.0,
        )

    def _with_unused(self, blocks: list[Block]) -> list[Block]:
        """Parameters that no step reads are held by the first block."""
        rest = [one for one in self.trace.parameters if one.name not in self.owners]
        count = sum(one.elements for one in rest)
        if not count:
            return blocks
        first = blocks[0]
        held = Operator(
            name="unused",
            kind=Kind.ELEMENTWISE,
            function=NOTHING,
            inputs=(),
            output=Tensor(name="unused_out", dims=TOKENS, copies=0.0),
            vectors=1,
            vector_dim="unused",
            kernels=0,
            launches=0.0,
            frozen=not any(one.trained for one in rest),
        )
        return [
            replace(
                first,
                operators=(held, *first.operators),
                extents={**first.extents, "unused": count},
            ),
            *blocks[1:],
        ]

    def _tied(self, blocks: Sequence[Block]) -> Iterator[tuple[tuple[str, str], ...]]:
        """Weights that several layers hold, but for those that share everything."""
        by_name = {
            layer.name: block for layer, block in zip(self.layers, blocks, strict=True)
        }
        whole = {
            one for group in self.alike.values() if len(group) > 1 for one in group
        }
        for name, holders in self.owners.items():
            several = len({layer for layer, _ in holders}) > 1
            if not several or len(self.parameters[name].shape) < 2:
                continue
            if all(layer in whole for layer, _ in holders):
                continue
            operators = [by_name[layer].operator(one) for layer, one in holders]
            if all(one.contracted is not None for one in operators):
                yield tuple(holders)


def _set_of(lowering: _Lowering, layer: Layer) -> frozenset[str]:
    return frozenset(
        name for one in layer.steps for name in lowering.trace.steps[one].parameters
    )


def _alike(
    trace: Trace, layers: Sequence[Layer]
) -> dict[frozenset[str], tuple[str, ...]]:
    """Numbered layers that hold the very same parameters, by these."""
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for layer in layers:
        names = frozenset(
            name for one in layer.steps for name in trace.steps[one].parameters
        )
        if names and layer.name not in ENDS:
            found[names] = (*found.get(names, ()), layer.name)
    return {names: group for names, group in found.items() if len(group) > 1}


def _between(trace: Trace, layers: Sequence[Layer]) -> _Between:
    home = {
        trace.steps[one].name: number
        for number, layer in enumerate(layers)
        for one in layer.steps
    }
    steps = {one.name: one for one in trace.steps}
    reads: list[dict[str, tuple[int, ...]]] = []
    for number, layer in enumerate(layers):
        found: dict[str, tuple[int, ...]] = {}
        for one in layer.steps:
            step = trace.steps[one]
            for value, shape in zip(step.reads, step.read_shapes, strict=True):
                if value in steps and steps[value].trains and home[value] < number:
                    found.setdefault(value, steps[value].shape or shape)
        reads.append(found)
    between = _Between(home=home, reads=reads, entry=[])
    _through_empty(between, layers)
    for number, found in enumerate(reads):
        before = [value for value in found if home[value] == number - 1]
        further = {value for later in reads[number + 1 :] for value in later}
        sizes = [
            (value not in further, prod(found[value]), place)
            for place, value in enumerate(before)
        ]
        entry = before[max(sizes)[-1]] if sizes else None
        between.entry.append(entry)
        between.skips |= {value for value in found if value != entry}
    return between


def _through_empty(between: _Between, layers: Sequence[Layer]) -> None:
    """A last norm without steps gives on what the head reads."""
    number = len(layers) - 2
    if layers[number].steps or number < 1:
        return
    last = between.reads[number + 1]
    for value, shape in last.items():
        if between.home[value] == number - 1:
            between.reads[number][value] = shape
    inside = list(between.reads[number])
    if inside:
        value = inside[0]
        between.home[value] = number - 1


def _folded(blocks: Sequence[Block]) -> tuple[tuple[Block, int], ...]:
    """Equal numbered layers as one block each, with how often they follow in a row."""
    kinds: dict[Any, Block] = {}
    named = []
    for block in blocks:
        if block.name in ENDS:
            named.append(block)
            continue
        key = (
            *(block.operators, tuple(sorted(block.extents.items())), block.entry),
            *(block.reads, block.heads, block.kv_heads, block.head_dim),
        )
        if key not in kinds:
            name = f"layer-{len(kinds) + 1}" if kinds else "layer"
            kinds[key] = replace(block, name=name)
        named.append(kinds[key])
    return tuple(
        (next(some), 1 + sum(1 for _ in some))
        for _, some in ((key, iter(list(same))) for key, same in groupby(named, key=id))
    )


def _names(path: str, steps: Sequence[Step]) -> list[str]:
    """What operators are called in their layer: by their module, and what they do."""
    short = []
    for step in steps:
        inside = step.module == path or step.module.startswith(f"{path}.")
        module = step.module[len(path) + 1 :] if path and inside else step.module
        short.append(f"{module}.{step.function}" if module else step.function)
    times, met = Counter(short), Counter[str]()
    found = []
    for one in short:
        met[one] += 1
        found.append(f"{one}.{met[one]}" if times[one] > 1 else one)
    return found


def _is_product(step: Step) -> bool:
    return bool(step.parameters) and step.flops.one > 0


def _attends(steps: Sequence[Step]) -> Step | None:
    return next(
        (one for one in steps if one.function == "scaled_dot_product_attention"), None
    )


def _heads(steps: Sequence[Step]) -> dict[str, int]:
    step = _attends(steps)
    if step is None:
        return {}
    shapes: Any = step.numbers["shapes"]
    query, key = shapes[:2]
    return {"heads": query[1], "kv_heads": key[1], "head_dim": query[-1]}


def _attention_extents(steps: Sequence[Step]) -> dict[str, int]:
    held = _heads(steps)
    if not held:
        return {}
    width = held["head_dim"]
    return {"query": held["heads"] * width, "key_value": 2 * held["kv_heads"] * width}
