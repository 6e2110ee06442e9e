"""The exported graph of a module as layers: what each computes, takes and gives.

A node that computes something that is trained is of the layer that the plan says. What
takes no part in training (masks, positions), and views, are computed anew in every
layer that reads them, from the sample's inputs. What is left crosses from layer to
layer, over as many stages as lie between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

from profiles.errors import Unsupported
from profiles.trace import Example, Layer, Trace, layers_named, traced


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNodes:
    """The nodes of a layer in order, those that it takes from layers before, and the
    names of parameters and buffers that it reads, by node."""

    name: str
    path: str
    nodes: tuple[fx.Node, ...]
    takes: tuple[fx.Node, ...]
    parameters: Mapping[str, str]
    buffers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A module cut into layers. `inputs` are the nodes of a sample's inputs in the
    order of their leaves, `loss` the node whose number (or whose squares' mean) is
    trained."""

    trace: Trace
    program: ExportedProgram
    layers: tuple[LayerNodes, ...]
    inputs: tuple[str, ...]
    loss: fx.Node
    home: Mapping[str, int] = field(repr=False)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where each layer is, by name."""
        return {layer.name: number for number, layer in enumerate(self.layers)}

    def crossing(self, place: int) -> tuple[fx.Node, ...]:
        """What is made before layer *place* and read there or later, in model order."""
        wanted: dict[str, fx.Node] = {}
        for layer in self.layers[place:]:
            for node in layer.takes:
                if self.home[node.name] < place:
                    wanted[node.name] = node
        order = {
            node.name: number for number, node in enumerate(self.program.graph.nodes)
        }
        return tuple(sorted(wanted.values(), key=lambda node: order[node.name]))

    def holders(self, name: str) -> list[int]:
        """The layers that hold the parameter called *name*."""
        return [
            number
            for number, layer in enumerate(self.layers)
            if name in layer.parameters.values()
        ]

    def unread(self, names: Iterable[str]) -> list[str]:
        """Those of *names* (of parameters and buffers) that no layer reads."""
        read = {
            name
            for layer in self.layers
            for name in (*layer.parameters.values(), *layer.buffers.values())
        }
        return [name for name in names if name not in read]


def cut_of(module: nn.Module, example: Example, name: str) -> Cut:
    """The layers of *module* (on any device; it is not run); raises Unsupported."""
    trace, program = traced(module, example, name)
    return _Cutting(trace, program).cut()


class _Cutting:
    def __init__(self, trace: Trace, program: ExportedProgram) -> None:
        self.trace, self.program = trace, program
        self.layers = layers_named(trace)
        steps = trace.steps
        self.home = {
            steps[one].name: number
            for number, layer in enumerate(self.layers)
            for one in layer.steps
        }
        self.trains = {step.name for step in steps if step.trains}
        self.mutates = {
            step.name
            for step in steps
            if step.function.endswith("_") and not step.trains
        }
        first = {alias: one.name for one in trace.parameters for alias in one.aliases}
        specs = program.graph_signature.input_specs
        self.kinds = {spec.arg.name: spec.kind for spec in specs}
        self.targets = {
            spec.arg.name: first.get(str(spec.target), str(spec.target))
            for spec in specs
            if spec.kind is not InputKind.USER_INPUT
        }

        self.steps = {step.name for step in steps}
        self.changed = self._changed()

    def cut(self) -> Cut:
        nodes = list(self.program.graph.nodes)
        loss = _loss(nodes[-1])
        layers: list[LayerNodes] = []
        for number, layer in reversed(list(enumerate(self.layers))):
            taken = {one.name for later in layers for one in later.takes}
            layers.insert(0, self._layer(number, layer, nodes, loss, taken))
        home = {
            one.name: self._home(one) for layer in layers for one in layer.takes
        } | self.home
        return Cut(
            trace=self.trace,
            program=self.program,
            layers=tuple(layers),
            inputs=tuple(
                name
                for name, kind in self.kinds.items()
                if kind is InputKind.USER_INPUT
            ),
            loss=loss,
            home=home,
        )

    def _layer(
        self,
        number: int,
        layer: Layer,
        nodes: Sequence[fx.Node],
        loss: fx.Node,
        taken: set[str],
    ) -> LayerNodes:
        """*taken* is what later layers take of any."""
        own = {self.trace.steps[one].name for one in layer.steps}
        wanted = {
            node.name
            for node in nodes
            if (node.name in own and node.name in self.trains | self.mutates)
            or (node.name in taken and self._home(node) == number)
        }
        if number == len(self.layers) - 1:
            wanted.add(loss.name)
        needed, takes = dict.fromkeys(wanted), dict[str, fx.Node]()
        by_name = {node.name: node for node in nodes}
        waiting = [by_name[name] for name in wanted]
        while waiting:
            node = waiting.pop()
            for one in (*node.all_input_nodes, *self._changes(node)):
                if one.name in needed or one.name in takes:
                    continue
                if self._comes_from_before(one, number):
                    takes[one.name] = one
                    continue
                needed[one.name] = None
                waiting.append(one)
        inside = tuple(node for node in nodes if node.name in needed)
        return LayerNodes(
            name=layer.name,
            path=layer.path,
            nodes=tuple(one for one in inside if one.op != "placeholder"),
            takes=tuple(takes.values()),
            parameters=dict(self._held(inside, InputKind.PARAMETER)),
            buffers=dict(self._others(inside)),
        )

    def _changes(self, node: fx.Node) -> list[fx.Node]:
        """What changes *node* in place, without being trained: nobody reads that."""
        return [
            one for one in self.changed.get(self._base(node), ()) if one is not node
        ]

    def _base(self, node: fx.Node) -> str:
        """The node that made the storage of *node*."""
        while node.op == "call_function" and node.all_input_nodes:
            if node.name in self.steps and not _in_place(node):
                break
            node = node.all_input_nodes[0]
        return node.name

    def _changed(self) -> dict[str, list[fx.Node]]:
        """What changes each storage in place and is not trained, in order."""
        found: dict[str, list[fx.Node]] = {}
        for node in self.program.graph.nodes:
            if _in_place(node) and node.name not in self.trains:
                base = self._base(node)
                if base not in self.kinds:
                    found.setdefault(base, []).append(node)
        return found

    def _comes_from_before(self, node: fx.Node, number: int) -> bool:
        """Whether a trained value of a layer before: a step's, or one of several that
        a step made."""
        if node.name in self.trains and self.home[node.name] < number:
            return isinstance(node.meta.get("val"), Tensor)
        several = _several(node)
        return (
            several is not None
            and several.name in self.trains
            and self.home[several.name] < number
        )

    def _home(self, node: fx.Node) -> int:
        several = _several(node)
        return self.home.get(node.name if several is None else several.name, -1)

    def _held(
        self, nodes: Sequence[fx.Node], kind: InputKind
    ) -> Iterator[tuple[str, str]]:
        for node in nodes:
            if node.op == "placeholder" and self.kinds.get(node.name) is kind:
                yield node.name, self.targets[node.name]

    def _others(self, nodes: Sequence[fx.Node]) -> Iterator[tuple[str, str]]:
        for kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            yield from self._held(nodes, kind)


def _in_place(node: fx.Node) -> bool:
    """Whether it writes into what it is given."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def _several(node: fx.Node) -> fx.Node | None:
    """What made several values of which *node* picks one."""
    if node.op != "call_function" or getattr(node.target, "__name__", "") != "getitem":
        return None
    source = node.args[0]
    if isinstance(source, fx.Node) and not isinstance(source.meta.get("val"), Tensor):
        return source
    return None


def _loss(output: fx.Node) -> fx.Node:
    """The number that the module gives, or its first output with a gradient."""
    leaves = [
        one
        for one in tree_leaves(output.args[0])
        if isinstance(one, fx.Node)
        and isinstance(one.meta.get("val"), Tensor)
        and one.meta["val"].is_floating_point()
    ]
    if not leaves:
        raise Unsupported("the module gives no number that could be trained")
    scalars = [one for one in leaves if one.meta["val"].ndim == 0]
    return (scalars or leaves)[0]
