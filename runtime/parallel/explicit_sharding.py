"""A layer whose operators are split as explicit `ModuleSharding`s say, one by one.

    input as given → as wanted → operator on local shards → as made → as handed on

What a redistribution sends, and where the reader's loop leaves gradients, which travel
the other way, `costmodel.operators.loop_sharding` says. The layer keeps its modules and
their names: parameters that are split become DTensors, and its `forward` runs the
operators of its block in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import PARTIAL, WHOLE, ModuleSharding, settled, split
from costmodel.operators import dimension, gradient_made, loops_of, summands
from profiles.models import Block, Operator
from runtime.models import AS_GIVEN, Layer, Mlp, Product, autocast
from runtime.parallel.collectives import (
    Group,
    all_reduce,
    all_to_all,
    exchanged,
    start_all_gather,
    start_reduce_scatter,
)
from runtime.parallel.tensor_parallel import local_shard, placed

Value = tuple[Tensor, ...]  # one tensor; of a gated MLP gate and up


def split_layer_as(
    layer: Layer, block: Block, modules: Sequence[ModuleSharding], mesh: DeviceMesh
) -> None:
    """Split *layer*, of the kind *block*, in place over the tp axis *mesh*."""
    named = {one.module.rpartition(".")[2]: one for one in modules}
    steps = [
        _step_of(layer, one, named[one.name], mesh.get_group())
        for one in block.operators
    ]
    summed: dict[str, bool] = {}
    for step in steps:
        for held in step.modules:
            _place(held, step, mesh)
        summed |= _summands_of(layer, step)
    layer.summands = summed  # type: ignore[assignment]
    assert block.entry is not None, "layers are given something"
    layer.forward = _Layer(block.entry.name, tuple(steps))  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Step:
    """An operator: how it is split, its modules, and what it computes."""

    operator: Operator
    sharding: ModuleSharding
    loop: str
    group: Group
    modules: tuple[nn.Module, ...]
    compute: Callable[..., Value]

    def run(self, values: Mapping[str, Value]) -> Value:
        """What it hands on, of what the operators before it handed on."""
        given = [
            self._input(values[tensor.name], number)
            for number, tensor in enumerate(self.operator.inputs)
        ]
        return self._output(self.compute(*given))

    def _input(self, value: Value, number: int) -> Value:
        one, tensor = self.sharding.inputs[number], self.operator.inputs[number]
        (back,) = gradient_made(tensor, (self.loop,))
        back = next((d for d in tensor.dims if dimension(d) == back), back)
        if self.operator.has_weight:
            value = tuple(autocast(*value))
        return _moved(
            value, one.dims, (one.given[0], one.wanted[0]), (back, one.given[0]), self
        )

    def _output(self, value: Value) -> Value:
        output = self.sharding.output
        (made,), (handed,) = output.made, output.handed
        back = (handed, settled((made,))[0])
        return _moved(value, output.dims, (made, handed), back, self)

    def biases(self, value: Value) -> Value:
        """*value* with the biases of products that are sums over ranks: added once."""
        (handed,) = self.sharding.output.handed
        found = []
        for one, module in zip(value, self.modules, strict=True):
            bias = getattr(module, "bias", None)
            columns = self.operator.output.dims[-1:]
            if bias is not None and split(handed) and handed in columns:
                bias = _piece(bias, 0, self.group)
            found.append(one if bias is None else one + bias.to(one.dtype))
        return tuple(found)

    @property
    def sums(self) -> bool:
        """Whether the operator makes summands."""
        return self.sharding.output.made[0] == PARTIAL


class _Layer:
    """The forward of a layer: its operators in order."""

    def __init__(self, entry: str, steps: tuple[Step, ...]) -> None:
        self.entry, self.steps = entry, steps

    def __call__(self, stream: Tensor) -> Tensor:
        values: dict[str, Value] = {self.entry: (stream,)}
        for step in self.steps:
            made = step.run(values)
            if step.sums and step.modules:
                made = step.biases(made)
            values[step.operator.output.name] = made
        (last,) = made
        return last


def _step_of(
    layer: Layer, operator: Operator, sharding: ModuleSharding, group: Group
) -> Step:
    (loop,) = loops_of(sharding, operator)
    modules = _modules(layer, operator.name)
    if operator.has_weight:
        biased = sharding.output.made[0] != PARTIAL
        compute = _products(modules, biased=biased)
    else:
        turns = group if loop == "sequence" else None
        compute = _computed(layer, operator.name, modules, turns)
    return Step(operator, sharding, loop, group, tuple(modules), compute)


def _modules(layer: Layer, name: str) -> list[nn.Module]:
    """The modules whose parameters the operator called *name* has."""
    attention, mlp = layer.attention, layer.mlp
    found: dict[str, tuple[nn.Module | None, ...]] = {
        "input_norm": (layer.input_norm,),
        "qkv": (attention.qkv,),
        "qk_norm": (attention.query_norm, attention.key_norm),
        "projection": (attention.projection,),
        "mlp_norm": (layer.mlp_norm,),
    }
    if name in ("mlp_up", "mlp_down"):
        assert isinstance(mlp, Mlp), "layers of experts are split by their preset"
        found |= {"mlp_up": (mlp.gate, mlp.up), "mlp_down": (mlp.down,)}
    return [one for one in found.get(name, ()) if one is not None]


def _computed(
    layer: Layer, name: str, modules: Sequence[nn.Module], turns: Group | None
) -> Callable[..., Value]:
    """What the operator called *name* does with this rank's part of its inputs; of the
    sequence it has the part of its rank in *turns*, or the whole."""
    attention = layer.attention

    def core(given: Value) -> Value:
        query, key, value = (one.transpose(1, 2) for one in _parts(layer, *given))
        mixed = attention.core(query, key, value)
        return (mixed.transpose(1, 2).flatten(2),)

    def head_norms(given: Value) -> Value:
        of_query, of_key = modules
        query, key, value = _parts(layer, *given)
        return (_packed(layer, of_query(query), of_key(key), value),)

    def rotary(given: Value) -> Value:
        query, key, value = _parts(layer, attention.clipped(*given))
        first = 0 if turns is None else turns.rank() * query.shape[1]
        query, key = attention.turn(query, key, first=first)
        return (_packed(layer, query, key, value),)

    def norm(given: Value) -> Value:
        return (modules[0](*given),)

    def residual(branch: Value, skip: Value) -> Value:
        return (skip[0] + layer.dropout(branch[0]),)

    def activation(given: Value) -> Value:
        return (layer.mlp.activation(*given),)  # type: ignore[operator]

    known: dict[str, Callable[..., Value]] = {
        "input_norm": norm,
        "qk_norm": head_norms,
        "rotary": rotary,
        "attention": core,
        "attention_residual": residual,
        "mlp_norm": norm,
        "activation": activation,
        "mlp_residual": residual,
    }
    return known[name]


def _place(module: nn.Module, step: Step, mesh: DeviceMesh) -> None:
    """Its parameters where the sharding has them."""
    for name, held in step.sharding.parameters.items():
        parameter = getattr(module, name, None)
        (word,) = held.placed
        if isinstance(parameter, nn.Parameter) and split(word):
            setattr(module, name, placed(parameter, mesh, held.dims.index(word)))


def _summands_of(layer: Layer, step: Step) -> dict[str, bool]:
    """By the parameters' names in the layer, whether their gradients are summands."""
    (handed,) = step.sharding.output.handed
    partial = summands(step.operator, step.loop, handed)
    names = {id(one): name for name, one in layer.named_parameters()}
    every = step.operator.vectors > 0 and bool(partial)  # several modules of one vector
    return {
        names[id(parameter)]: every or name in partial
        for module in step.modules
        for name, parameter in module.named_parameters()
    }


def _products(modules: Sequence[nn.Module], *, biased: bool) -> Callable[..., Value]:
    def multiplied(stream: Tensor, module: nn.Module) -> Tensor:
        product: Product = getattr(module, "product", AS_GIVEN)
        weight, bias = (getattr(module, name) for name in ("weight", "bias"))
        added = None if bias is None or not biased else local_shard(bias)
        return product(stream, local_shard(weight), added)

    def run(given: Value) -> Value:
        (stream,) = given
        return tuple(multiplied(stream, one) for one in modules)

    return run


def _parts(layer: Layer, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(batch, seq_len, heads, head_dim) of queries, keys and values."""
    attention = layer.attention
    by_group = packed.unflatten(-1, (-1, attention.queries + 2, attention.head_dim))
    query = by_group[:, :, :, : attention.queries].flatten(2, 3)
    return query, by_group[:, :, :, -2], by_group[:, :, :, -1]


def _packed(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same by key-value head, as the product makes them."""
    groups = key.shape[2]
    by_group = query.unflatten(2, (groups, layer.attention.queries))
    every = (by_group, key.unsqueeze(3), value.unsqueeze(3))
    return torch.cat(every, dim=3).flatten(2)


def _moved(
    value: Value,
    dims: tuple[str, ...],
    there: tuple[str, str],
    back: tuple[str, str],
    step: Step,
) -> Value:
    """*value* redistributed *there*, its gradient *back*: several tensors in one go."""
    if there[0] == there[1] and back[0] == back[1]:
        return value
    single = len(value) == 1
    named, group = dims if single else ("", *dims), step.group
    made = exchanged(
        value[0] if single else torch.stack(value),
        lambda one: redistributed(one, named, *there, group),
        lambda one: redistributed(one, named, *back, group),
    )
    return (made,) if single else tuple(made.unbind())


def redistributed(
    value: Tensor, dims: tuple[str, ...], have: str, want: str, group: Group
) -> Tensor:
    """A tensor of dimensions *dims* that this rank has as *have*, as *want*.

    Words are those of `costmodel.operators.loop_sharding`; nothing becomes a summand.
    """
    if have == want:
        return value.view_as(value)
    if have == WHOLE:
        return _piece(value, dims.index(want), group)
    if have == PARTIAL:
        if want == WHOLE:
            whole = value.clone(memory_format=torch.contiguous_format)
            return all_reduce(whole, group)
        return start_reduce_scatter(value, group, dim=dims.index(want)).wait()
    if want == WHOLE:
        return start_all_gather(value, group, dim=dims.index(have)).wait()
    pieces = torch.stack(value.chunk(group.size(), dims.index(want)))
    return torch.cat(all_to_all(pieces, group).unbind(), dims.index(have))


def _piece(value: Tensor, dim: int, group: Group) -> Tensor:
    return value.chunk(group.size(), dim)[group.rank()].contiguous()
