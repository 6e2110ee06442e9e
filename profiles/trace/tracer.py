"""A module of the user's own as a `Trace`: exported once, evaluated at two batches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from profiles.errors import Unsupported
from profiles.trace.evaluate import (
    DataDependent,
    Evaluation,
    Seen,
    Untrainable,
    evaluated,
)
from profiles.trace.export import depends_on_numbers, exported
from profiles.trace.factory import Example, module_of
from profiles.trace.huggingface import as_in_training
from profiles.trace.routed import opaque
from profiles.trace.steps import Amount, Parameter, Saved, Step, Trace

BATCHES = (2, 3)


@lru_cache(maxsize=16)
def trace(reference: str, *, seq_len: int | None = None) -> Trace:
    """The trace of what `package.module:factory` makes, of samples of *seq_len* tokens
    where its inputs do not say. Raises InvalidSpec, UnknownName and Unsupported.
    """
    module, example = module_of(reference, seq_len=seq_len)
    return trace_module(module, example, name=reference)


def trace_module(module: nn.Module, example: Example, *, name: str) -> Trace:
    """The trace of *module* as it is called with *example*; nothing is computed."""
    return traced(module, example, name)[0]


def traced(
    module: nn.Module, example: Example, name: str
) -> tuple[Trace, ExportedProgram]:
    """The trace, and the graph that it is of; *module* itself may be anywhere."""
    with as_in_training(), opaque(module):
        program = exported(module, example, name)
    try:
        few, more = (evaluated(program, batch) for batch in BATCHES)
    except DataDependent as error:
        where = _line(error.node) or "its forward"
        raise Unsupported(depends_on_numbers(name, where)) from error
    except Untrainable as error:
        raise Unsupported(
            f"nothing that {name} gives can be trained: let its forward return a loss, "
            "or a floating-point tensor that depends on parameters with a gradient"
        ) from error
    parameters = _parameters(module)
    made = _Assembly(program, few, more, parameters)
    found = Trace(
        name=name,
        steps=tuple(made.steps()),
        parameters=parameters,
        seq_len=example.seq_len,
        loss=few.loss,
        lists=_lists(module),
    )
    return found, program


class _Assembly:
    def __init__(
        self,
        program: ExportedProgram,
        few: Evaluation,
        more: Evaluation,
        parameters: Sequence[Parameter],
    ) -> None:
        self.program, self.few, self.more = program, few, more
        first = {alias: one.name for one in parameters for alias in one.aliases}
        self.parameter_of = {
            spec.arg.name: first.get(str(spec.target), str(spec.target))
            for spec in program.graph_signature.input_specs
            if spec.kind is InputKind.PARAMETER
        }
        self.latest: dict[str, str] = {}  # of each storage, the step that wrote last
        self.through: dict[str, tuple[str, ...]] = {}  # parameters seen through views

    def steps(self) -> Iterator[Step]:
        """All of them, in order."""
        for node in self.program.graph.nodes:
            if node.op == "placeholder" and node.name in self.few.nodes:
                self.latest[self.few.nodes[node.name].root] = node.name
            if node.op == "call_function":
                step = self._step(node)
                if step is not None:
                    yield step

    def _step(self, node: fx.Node) -> Step | None:
        few, more = self.few.nodes[node.name], self.more.nodes[node.name]
        function = _function(node)
        parameters = self._parameters_of(node)
        if few.kernels == 0 or function.startswith("_assert"):
            self.through[node.name] = parameters
            if few.root == node.name:  # nothing computed
                self.latest.setdefault(few.root, self._source(node))
            return None
        reads = self._reads(node)
        self.latest[self._root(node) or node.name] = node.name
        path, kind = _module(node)
        return Step(
            name=node.name,
            module=path,
            kind=kind,
            function=function,
            reads=tuple(reads),
            parameters=parameters,
            shape=self._one_sample(node.name),
            read_shapes=tuple(reads.values()),
            numbers={**_numbers(node), **self._attended(node)},
            elements=_amount(few.elements, more.elements),
            itemsize=few.itemsize,
            trains=few.trains,
            flops=_amount(few.flops, more.flops),
            backward_flops=_amount(few.backward_flops, more.backward_flops),
            moved=_amount(few.moved, more.moved),
            backward_moved=_amount(few.backward_moved, more.backward_moved),
            kernels=few.kernels,
            saves=tuple(self._saves(few, more)),
            known=getattr(node.target, "namespace", "aten") == "aten",
            line=_line(node),
        )

    def _source(self, node: fx.Node) -> str:
        """Whose value a node without kernels gives on."""
        for one in node.all_input_nodes:
            root = self._root(one)
            if root in self.latest:
                return self.latest[root]
        return node.name

    def _root(self, node: fx.Node) -> str:
        seen = self.few.nodes.get(node.name)
        return seen.root.partition("#")[0] if seen is not None else ""

    def _reads(self, node: fx.Node) -> dict[str, tuple[int, ...]]:
        """Values that it reads, with the shape that it sees them in."""
        found: dict[str, tuple[int, ...]] = {}
        for one in node.all_input_nodes:
            if isinstance(one.meta.get("val"), int | torch.SymInt):
                continue  # a length
            root = self._root(one)
            if root and one.name not in self.parameter_of:
                found.setdefault(
                    self.latest.get(root, root), self._one_sample(one.name)
                )
        return found

    def _attended(self, node: fx.Node) -> dict[str, Any]:
        """Shapes of an attention's queries, keys and values, where each lies in its
        storage and how far apart its heads do; and whether its mask lets a query see
        those before it alone."""
        if _function(node) != "scaled_dot_product_attention":
            return {}
        given = [one for one in node.args[:3] if isinstance(one, fx.Node)]
        found: dict[str, Any] = {
            "shapes": tuple(self._one_sample(one.name) for one in given),
            "operands": tuple(self.latest.get(self._root(one), "") for one in given),
            "lies": tuple(
                (self.few.nodes[one.name].offset, self.few.nodes[one.name].strides[1])
                for one in given
            ),
        }
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        if isinstance(mask, fx.Node) and _compares_positions(mask):
            found["is_causal"] = True
        return found

    def _parameters_of(self, node: fx.Node) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for one in node.all_input_nodes:
            if one.name in self.parameter_of:
                found[self.parameter_of[one.name]] = None
            elif not self._root(one):
                found |= dict.fromkeys(self.through.get(one.name, ()))
        return tuple(found)

    def _saves(self, few: Seen, more: Seen) -> list[Saved]:
        return [
            Saved(
                value=self.latest.get(kept.of, kept.of),  # as changed in place
                elements=_amount(kept.elements, other.elements),
                itemsize=kept.itemsize,
                floating=kept.floating,
                internal=kept.internal,
            )
            for kept, other in zip(few.keeps, more.keeps, strict=True)
        ]

    def _one_sample(self, name: str) -> tuple[int, ...]:
        few, more = self.few.nodes[name].shape, self.more.nodes[name].shape
        return tuple(int(_amount(a, b).one) for a, b in zip(few, more, strict=True))


def _amount(few: int, more: int) -> Amount:
    """From counts at both of `BATCHES`."""
    each = (more - few) / (BATCHES[1] - BATCHES[0])
    return Amount(each=each, once=few - each * BATCHES[0])


def _function(node: fx.Node) -> str:
    packet = getattr(node.target, "_overloadpacket", None)
    if packet is None:
        return getattr(node.target, "__name__", str(node.target))
    space = node.target.namespace  # type: ignore[union-attr]
    name = str(packet.__name__)
    return name if space in ("aten", "meshwright") else f"{space}.{name}"


def _module(node: fx.Node) -> tuple[str, str]:
    """Path and class of the innermost module that calls it."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    if not stack:
        return "", ""
    path, kind = stack[-1][:2]
    if path.startswith("_empty"):
        return "", ""
    name = kind if isinstance(kind, str) else kind.__name__
    return path, name.rpartition(".")[2]


def _numbers(node: fx.Node) -> Mapping[str, Any]:
    """What it is called with beside tensors."""
    found: dict[str, Any] = {}
    schema = getattr(node.target, "_schema", None)
    names = [one.name for one in schema.arguments] if schema else []
    pairs = [*zip(names, node.args, strict=False), *node.kwargs.items()]
    for name, one in pairs:
        if isinstance(one, bool | int | float | str):
            found[name] = one
        elif isinstance(one, list | tuple) and all(isinstance(x, int) for x in one):
            found[name] = tuple(one)
    return found


def _compares_positions(mask: fx.Node, depth: int = 12) -> bool:
    """Whether a mask comes of `<=` or of a triangle."""
    if depth == 0 or mask.op != "call_function":
        return False
    if _function(mask) in ("le", "ge", "tril", "triu", "lt", "gt"):
        return True
    return any(_compares_positions(one, depth - 1) for one in mask.all_input_nodes)


def _line(node: fx.Node) -> str:
    trace = node.meta.get("stack_trace") or ""
    lines = [
        one.strip() for one in trace.splitlines() if one.strip().startswith("File")
    ]
    found = re.match(r'File "(.*)", line (\d+), in (\S+)', lines[-1] if lines else "")
    return f"{Path(found[1]).name}, line {found[2]}, in {found[3]}" if found else ""


def _parameters(module: nn.Module) -> tuple[Parameter, ...]:
    names: dict[int, list[str]] = {}
    held: dict[int, Tensor] = {}
    for name, one in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(one), []).append(name)
        held[id(one)] = one
    return tuple(
        Parameter(
            name=first,
            shape=tuple(held[key].shape),
            trained=held[key].requires_grad,
            aliases=tuple(others),
        )
        for key, (first, *others) in names.items()
    )


def _lists(module: nn.Module) -> tuple[tuple[str, tuple[str, ...]], ...]:
    kinds = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
    return tuple(
        (
            path,
            tuple(
                f"{path}.{name}" if path else name for name, _ in one.named_children()
            ),
        )
        for path, one in module.named_modules()
        if isinstance(one, kinds)
    )
