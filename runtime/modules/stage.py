"""Layers of a module that one pipeline stage runs, as modules that hold its parameters.

What crosses into a stage comes as one tensor, a row for each sample: the number of the
sample in digits, then the values one after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from runtime.modules.cut import Cut, LayerNodes
from runtime.modules.samples import DIGITS, Samples, digits, numbers_of

Env = dict[str, Any]
Held = tuple[Tensor, bool]  # a parameter or buffer, and whether it is saved


class TracedLayer(nn.Module):
    """The nodes of one layer, run in order; its parameters by the user's names."""

    def __init__(
        self, layer: LayerNodes, held: Mapping[str, Held], gives: Sequence[str]
    ) -> None:
        super().__init__()
        self.name, self._nodes, self._gives = layer.name, layer.nodes, tuple(gives)
        self.again = False  # run once more in backward
        self._takes = tuple(node.name for node in layer.takes)
        self._names = {**layer.parameters, **layer.buffers}
        for name in self._names.values():
            if name in held:
                _put(self, name, held[name])

    def forward(self, inputs: Mapping[str, Any], *taken: Tensor) -> tuple[Tensor, ...]:
        """What later layers take of it; *taken* are what it takes."""
        if self.again and torch.is_grad_enabled():
            return checkpoint(self._run, inputs, *taken, use_reentrant=False)  # type: ignore[no-any-return]
        return self._run(inputs, *taken)

    def _run(self, inputs: Mapping[str, Any], *taken: Tensor) -> tuple[Tensor, ...]:
        env: Env = {**inputs, **dict(zip(self._takes, taken, strict=True))}
        for place, name in self._names.items():
            if place not in env:
                env[place] = _get(self, name)
        for node in self._nodes:
            if node.name in env:
                continue
            if node.op == "get_attr":
                env[node.name] = _get(node.graph.owning_module, str(node.target))
                continue
            args, kwargs = (
                fx.map_arg(one, lambda n: env[n.name])
                for one in (node.args, node.kwargs)
            )
            env[node.name] = node.target(*_here(args, inputs), **_here(kwargs, inputs))  # type: ignore[operator]
        return tuple(env[name] for name in self._gives)

    @property
    def takes(self) -> tuple[str, ...]:
        return self._takes

    @property
    def gives(self) -> tuple[str, ...]:
        return self._gives


class TracedStage(nn.Module):
    """The layers called *names* of a *cut* module, whose parameters are *whole*'s."""

    def __init__(
        self,
        cut: Cut,
        names: Sequence[str],
        whole: nn.Module,
        samples: Samples,
    ) -> None:
        super().__init__()
        places = [cut.places[name] for name in names]
        self.samples, self._cut = samples, cut
        self._comes = cut.crossing(places[0]) if places[0] else ()
        self.last = places[-1] == len(cut.layers) - 1
        self._goes = () if self.last else cut.crossing(places[-1] + 1)
        later = {node.name for node in self._goes}
        if self.last:
            later.add(cut.loss.name)
        held = self._held(whole, places)
        layers = []
        for place in places:
            after = {
                node.name
                for other in places
                if other > place
                for node in cut.layers[other].takes
            }
            gives = sorted(name for name in after | later if self._made_in(name, place))
            layers.append(TracedLayer(cut.layers[place], held, gives))
        self.layers = nn.ModuleDict(
            {layer.name: layer for layer in layers if layer._nodes}
        )
        self.unread = nn.Module()  # what no layer computes with: saved all the same
        for name in cut.unread(held) if places[0] == 0 else ():
            one, saved = held[name]
            _put(self.unread, name, (one.detach(), saved))

    def recompute(self, names: Collection[str]) -> None:
        """Run the layers called *names* once more in backward."""
        for name, layer in self.layers.items():
            assert isinstance(layer, TracedLayer)
            layer.again = name in names

    def units(self) -> list[nn.Module]:
        """Layers that have their parameters for themselves, in order."""
        held = [
            {id(one) for one in layer.parameters()} for layer in self.layers.values()
        ]
        counted = Counter(one for some in held for one in some)
        return [
            layer
            for layer, some in zip(self.layers.values(), held, strict=True)
            if some and all(counted[one] == 1 for one in some)
        ]

    def _held(self, whole: nn.Module, places: Sequence[int]) -> dict[str, Held]:
        """Parameters and buffers by name; what other stages hold too is a copy."""
        held: dict[str, Held] = {}
        for name, one in whole.named_parameters():
            elsewhere = [n for n in self._cut.holders(name) if n not in places]
            own = one
            if elsewhere:
                again = one.detach().clone()
                own = nn.Parameter(again, requires_grad=one.requires_grad)
            held[name] = own, True
        saved = whole.state_dict().keys()
        buffers = whole.named_buffers(remove_duplicate=False)
        return held | {name: (one, name in saved) for name, one in buffers}

    def _made_in(self, name: str, place: int) -> bool:
        home = self._cut.home.get(name)
        if home is None:  # the loss, where it is a view of what is computed
            return name == self._cut.loss.name and place == len(self._cut.layers) - 1
        if name == self._cut.loss.name and self.last:
            return place == len(self._cut.layers) - 1
        return home == place

    def forward(self, given: Tensor, targets: Tensor | None = None) -> Tensor:
        """From numbers of samples, or what the stage before hands on, to what this one
        does, or the loss."""
        numbers = (
            given[:, 0] if not self._comes and given.dtype is torch.int64 else None
        )
        env: Env = {}
        if numbers is None:
            counted, *parts = given.split(self._lengths(len(given)), 1)
            numbers = numbers_of(counted.detach())
            env |= self._unpacked(parts, len(numbers))
        inputs = self._inputs(numbers)
        for layer in self.layers.values():
            assert isinstance(layer, TracedLayer)
            made = layer(inputs, *(env[name] for name in layer.takes))
            env |= zip(layer.gives, made, strict=True)
        if self.last:
            return _loss_of(env[self._cut.loss.name])
        return self._packed(env, numbers)

    def _inputs(self, numbers: Tensor) -> Env:
        example = self.samples.inputs(numbers)
        leaves = tree_leaves((example.args, dict(example.kwargs)))
        return dict(zip(self._cut.inputs, leaves, strict=True))

    def width(self, nodes: Sequence[fx.Node]) -> int:
        """Elements of a row of what crosses."""
        return DIGITS + sum(_elements(node, 1)[0] for node in nodes)

    @property
    def comes(self) -> int:
        """Elements of a sample that come in."""
        return self.width(self._comes)

    @property
    def goes(self) -> int:
        """Elements of a sample that are handed on."""
        return self.width(self._goes)

    def _packed(self, env: Env, numbers: Tensor) -> Tensor:
        batch = len(numbers)
        rows = []
        for node in self._goes:
            value = env[node.name]
            _, per_sample = _elements(node, batch)
            rows.append(
                value.reshape(batch, -1)
                if per_sample
                else value.reshape(1, -1).expand(batch, -1)
            )
        kind = torch.promote_types(*(one.dtype for one in (rows[0], rows[-1])))
        return torch.cat([digits(numbers, kind), *(one.to(kind) for one in rows)], 1)

    def _lengths(self, batch: int) -> list[int]:
        """Elements of a row of each value that comes in: their gradients are laid side
        by side at once."""
        return [DIGITS, *(_elements(node, batch)[0] for node in self._comes)]

    def _unpacked(self, parts: Sequence[Tensor], batch: int) -> Env:
        found = {}
        for node, part in zip(self._comes, parts, strict=True):
            _, per_sample = _elements(node, batch)
            shape = [
                size if isinstance(size, int) else _size(size, batch)
                for size in node.meta["val"].shape
            ]
            found[node.name] = (part if per_sample else part[:1]).reshape(shape)
        return found

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """By the user's names, whichever layers hold them."""
        front = f"{prefix}." if prefix else ""
        for name, one in super().named_parameters("", recurse, remove_duplicate):
            yield f"{front}{_users(name)}", one

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """By the user's names too."""
        held = super().state_dict(*args, **kwargs)
        return {_users(name): one for name, one in held.items()}


def _users(name: str) -> str:
    """The user's name of a tensor: layers.LAYER.NAME or unread.NAME here."""
    return name.split(".", 2 if name.startswith("layers.") else 1)[-1]


def _loss_of(made: Tensor) -> Tensor:
    return made if made.ndim == 0 else made.float().square().mean()


def _elements(node: fx.Node, batch: int) -> tuple[int, bool]:
    """Elements of a row, and whether there is one for each sample."""
    shape = node.meta["val"].shape
    one, two = (
        torch.Size([_size(size, count) for size in shape]).numel() for count in (1, 2)
    )
    return (one, True) if two == 2 * one else (one, False)


def _size(size: Any, batch: int) -> int:
    """A length that is a multiple of the batch, for so many samples."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    symbols = list(expression.free_symbols)
    return int(expression.subs(dict.fromkeys(symbols, batch)))


def _here(some: Any, inputs: Mapping[str, Any]) -> Any:
    """On the device of the sample: the graph was made on the meta device."""
    device = next(one.device for one in inputs.values() if isinstance(one, Tensor))
    return torch.utils._pytree.tree_map_only(torch.device, lambda _: device, some)


def _put(module: nn.Module, name: str, held: Held) -> None:
    one, saved = held
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module._modules[part]  # type: ignore[assignment]
    if isinstance(one, nn.Parameter) and one.requires_grad:
        module.register_parameter(last, one)
    else:
        module.register_buffer(last, one.detach(), persistent=saved)


def _get(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module
