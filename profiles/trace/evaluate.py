"""An exported graph carried out on fake tensors: what each node costs and keeps.

No number is computed and none is stored. What a node's kernels read and write, their
FLOPs and what autograd keeps are seen as eager PyTorch would do it on a CPU; backward's
are put down to the node whose gradient it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.autograd.graph import saved_tensors_hooks
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.flop_counter import flop_registry

CPU = torch.device("cpu")
_DESCRIBED = (
    *("shape", "strides", "offset"),
    *("elements", "itemsize", "floating", "trains"),
)


class DataDependent(Exception):
    """The shape of what a node makes depends on numbers, which nobody computes."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__(str(node.target))
        self.node = node


class Untrainable(Exception):
    """Nothing that the module gives has a gradient."""


@dataclass(slots=True)
class Kept:
    """A storage that autograd keeps: of a value (`of`), or a node's own."""

    of: str
    elements: int
    itemsize: int
    floating: bool
    internal: bool


@dataclass(slots=True)
class Seen:
    """What one node did, at one batch size."""

    flops: int = 0
    backward_flops: int = 0
    moved: int = 0
    backward_moved: int = 0
    kernels: int = 0
    elements: int = 0
    keeps: list[Kept] = field(default_factory=list)
    root: str = ""  # the node whose storage it gives on; its own name if it made it
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0  # in its storage
    itemsize: int = 4
    floating: bool = True
    trains: bool = False


@dataclass(slots=True)
class Evaluation:
    """Of every node, by name; and whether the output is a loss."""

    nodes: dict[str, Seen]
    loss: bool


class _Counting(TorchDispatchMode):
    """Adds each kernel to the node that is current."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = Seen()
        self.of_backward: dict[Any, Seen] | None = None
        self.nowhere = Seen()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        flops = 0
        if packet in flop_registry:
            flops = flop_registry[packet](*args, **(kwargs or {}), out_val=made)
        moved = 0 if _gives_on(func) else _elements((args, kwargs)) + _elements(made)
        if self.of_backward is None:
            seen = self.current
            seen.flops += flops
            seen.moved += moved
            seen.kernels += moved > 0
        elif func is not _SUM:  # of several readers' gradients: of none of them
            node = torch._C._current_autograd_node()
            seen = self.of_backward.get(node, self.nowhere)
            seen.backward_flops += flops
            seen.backward_moved += moved
        return made


def _gives_on(func: Any) -> bool:
    """Whether it makes a view, or nothing."""
    if func.is_view or func in _FREE:
        return True
    return bool(func.namespace == "prim")


_ATEN = torch.ops.aten
_SUM = _ATEN.add.Tensor
_FREE = {
    _ATEN.detach.default,
    _ATEN.empty.memory_format,
    _ATEN._unsafe_view.default,
    _ATEN._reshape_alias.default,
    _ATEN.alias.default,
    _ATEN.empty_like.default,
    _ATEN.empty_strided.default,
}


def _elements(some: Any) -> int:
    return sum(one.numel() for one in tree_leaves(some) if isinstance(one, Tensor))


def evaluated(program: ExportedProgram, batch: int) -> Evaluation:
    """Carry out *program* forward and backward with so many samples."""
    run = _Run(program, batch)
    with _without_onednn(), FakeTensorMode(allow_non_fake_inputs=True), run.counting:
        return run()


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Its recurrent layers keep a workspace that no other device has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of flags that it sets beside
        with torch.backends.mkldnn.flags(enabled=False):
            yield


class _Run:
    def __init__(self, program: ExportedProgram, batch: int) -> None:
        self.program, self.batch = program, batch
        self.counting = _Counting()
        self.values: dict[str, Any] = {}
        self.nodes: dict[str, Seen] = {}
        self.homes: dict[int, str] = {}  # of storages
        self.outside: set[int] = set()  # storages of parameters and buffers
        self.owners: dict[Any, Seen] = {}  # of autograd's nodes
        self.held: list[Any] = []

    def __call__(self) -> Evaluation:
        given = iter(self.program.graph_signature.input_specs)
        made: Any = None
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._place(node, next(given))
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "get_attr":
                self.values[node.name] = getattr(self.program.graph_module, node.target)
            else:
                made = tree_map(self._value, node.args[0])
        loss = self._backward(made)
        return Evaluation(nodes=self.nodes, loss=loss)

    def _place(self, node: fx.Node, spec: Any) -> None:
        like = node.meta.get("val")
        if not isinstance(like, Tensor):
            self.values[node.name] = getattr(spec.arg, "value", None)
            return
        sizes: Sequence[Any] = like.shape
        shape = [one if isinstance(one, int) else self.batch for one in sizes]
        made = torch.empty(shape, dtype=like.dtype, device=CPU)
        if spec.kind is InputKind.PARAMETER:
            made.requires_grad_(self._trained(spec.target))
        if spec.kind is InputKind.USER_INPUT:
            self.nodes[node.name] = self._described(node.name, made)
            self.homes[_storage(made)] = node.name
        else:
            self.outside.add(_storage(made))
        self.held.append(made)
        self.values[node.name] = made

    def _trained(self, name: str) -> bool:
        return bool(self.program.state_dict[name].requires_grad)

    def _call(self, node: fx.Node) -> None:
        args = tree_map_only(
            torch.device, lambda _: CPU, fx.map_arg(node.args, self._of)
        )
        kwargs = tree_map_only(
            torch.device, lambda _: CPU, fx.map_arg(node.kwargs, self._of)
        )
        seen = self.counting.current = Seen()
        kept: list[Tensor] = []

        def keep(one: Tensor) -> Tensor:
            kept.append(one)
            return one

        with saved_tensors_hooks(keep, lambda one: one), torch.enable_grad():
            made = self._made(node, args, kwargs)
        self.values[node.name] = made
        first = next(
            (one for one in tree_leaves(made) if isinstance(one, Tensor)), None
        )
        if first is not None:
            described = self._described(node.name, first)
            for name in _DESCRIBED:
                setattr(seen, name, getattr(described, name))
        self._own(node, made, seen)
        for one in kept:
            self._keep(node, one, seen)
        self.nodes[node.name] = seen

    def _made(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        try:
            return node.target(*args, **kwargs)  # type: ignore[operator]
        except (DynamicOutputShapeException, DataDependentOutputException) as error:
            raise DataDependent(node) from error

    def _of(self, node: fx.Node) -> Any:
        return self.values[node.name]

    def _value(self, one: Any) -> Any:
        return self.values[one.name] if isinstance(one, fx.Node) else one

    def _described(self, name: str, made: Tensor) -> Seen:
        return Seen(
            elements=made.numel(),
            root=name,
            shape=tuple(made.shape),
            strides=made.stride(),
            offset=int(made.storage_offset()),
            itemsize=made.element_size(),
            floating=made.is_floating_point(),
            trains=made.requires_grad,
        )

    def _own(self, node: fx.Node, made: Any, seen: Seen) -> None:
        """Its storages and its part of autograd's graph are of this node."""
        seen.root = node.name
        tensors = [one for one in tree_leaves(made) if isinstance(one, Tensor)]
        for place, one in enumerate(tensors):
            storage = _storage(one)
            self.held.append(one)
            if storage not in self.outside:
                name = f"{node.name}#{place}" if place else node.name
                home = self.homes.setdefault(storage, name)
            else:
                home = ""
            if not place:
                seen.root = home
            waiting = [one.grad_fn] if one.grad_fn is not None else []
            while waiting:
                function = waiting.pop()
                if function in self.owners:
                    continue
                self.owners[function] = seen
                waiting += [
                    before
                    for before, _ in function.next_functions
                    if before is not None
                    and before.name() != "torch::autograd::AccumulateGrad"
                ]

    def _keep(self, node: fx.Node, one: Tensor, seen: Seen) -> None:
        storage = _storage(one)
        self.held.append(one)
        if storage in self.outside or any(
            (kept.of, kept.internal) == (self.homes.get(storage, ""), False)
            for kept in seen.keeps
        ):
            return
        home = self.homes.get(storage)
        if home is None:
            home = f"{node.name}.{len(seen.keeps)}"
            self.homes[storage] = home
        internal = home not in self.nodes and home != node.name
        seen.keeps.append(
            Kept(
                of=home,
                elements=one.untyped_storage().nbytes() // one.element_size(),
                itemsize=one.element_size(),
                floating=one.is_floating_point(),
                internal=internal,
            )
        )

    def _backward(self, made: Any) -> bool:
        """From the loss: a number that the module gives, or the mean of squares.

        Raises Untrainable where neither has a gradient.
        """
        leaves = [
            one
            for one in tree_leaves(made)
            if isinstance(one, Tensor) and one.is_floating_point() and one.requires_grad
        ]
        if not leaves:
            raise Untrainable
        scalars = [one for one in leaves if one.numel() == 1 and one.ndim == 0]
        self.counting.current = Seen()
        self.counting.of_backward = self.owners
        if scalars:
            scalars[0].backward()
        else:
            torch.autograd.backward(leaves[:1], [torch.empty_like(leaves[0])])
        return bool(scalars)


def _storage(one: Tensor) -> int:
    return int(one.untyped_storage()._cdata)
