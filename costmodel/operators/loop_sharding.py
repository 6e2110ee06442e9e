"""How an operator is split: for each mesh axis one loop of its nest, and what follows.

An operator is a loop nest in named dimensions. Splitting a loop over a mesh axis splits
there every tensor that has the dimension; one that lacks it is whole, and is a sum
where the loop was summed over (the einsum rule of Mesh-TensorFlow, Shazeer et al.,
NeurIPS 2018, section 3). For a product of rows × contracted with contracted × columns:

    loop          input      weight    output     gradients: input   weight
    batch, seq.   split      whole     split                 split   partial
    columns       whole      split     split                 partial split
    contracted    split      split     partial               split   split
    (none)        whole      whole     whole                 whole   whole

That no two dimensions of a tensor lie on one axis needs no check: an axis has one loop.
A `ModuleSharding` is this, spelled out for one module.

`redistribution`: from one placement on a mesh to another, axis by axis. A placement
says for each mesh axis what becomes of a tensor there: the name of the
dimension that is split along it, `whole`, or `partial` (each rank has a summand). It is
DTensor's Shard, Replicate and Partial with names for numbers, and as DTensor does,
`redistribution` changes one axis after another: first what makes the tensor smaller.

    whole → split       slice, free         partial → whole    all-reduce
    partial → split     reduce-scatter      split → whole      all-gather
    split → otherwise   all-to-all
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from costmodel.layout import (
    PARTIAL,
    WHOLE,
    InputSharding,
    ModuleSharding,
    OutputSharding,
    ParameterSharding,
    Placed,
    split,
)
from costmodel.machine import MeshAxis
from costmodel.operators.sharding import ON_TP, redistribute
from profiles.errors import InvalidSpec
from profiles.models import MIXERS, Kind, Operator, Tensor

# Widths that are so many attention heads: splitting one is splitting the heads.
HEADS = ON_TP - {"ffn", "shared_ffn", "vocab"}
ROWS = ("batch", "sequence")


def dimension(name: str) -> str:
    """The name under which a dimension is split.

    >>> dimension("query+key_value"), dimension("ffn")
    ('heads', 'ffn')
    """
    return "heads" if name in HEADS else name


def splittable(operator: Operator) -> tuple[str, ...]:
    """The loops of an operator that ranks can share, in a fixed order.

    Attention needs the whole sequence of a head; a norm the whole width; a table of
    positions is too small to split.
    """
    if operator.kind in MIXERS:
        return ("batch", "heads")
    source = operator.inputs[0] if operator.inputs else operator.output
    names = [*operator.output.dims]
    if operator.has_weight and operator.contracted != "positions":
        names.append(operator.contracted or "")
    elif operator.kind is Kind.CROSS_ENTROPY:
        names = [*source.dims]
    if operator.vectors:
        names = [name for name in names if name != operator.vector_dim]
    return tuple(dict.fromkeys(map(dimension, names)))


def made(operator: Operator, loops: Placed) -> Placed:
    """The output as the loops leave it."""
    dims = own_dims(operator.output)
    sums = operator.kind is not Kind.CROSS_ENTROPY  # it sums its statistics itself
    return tuple(
        word if word in dims else PARTIAL if sums and word != WHOLE else WHOLE
        for word in loops
    )


def wanted(tensor: Tensor, loops: Placed) -> Placed:
    """An input as the loops read it."""
    dims = own_dims(tensor)
    return tuple(word if word in dims else WHOLE for word in loops)


def gradient_made(tensor: Tensor, loops: Placed) -> Placed:
    """The gradient of an input as the loops leave it."""
    dims = own_dims(tensor)
    return tuple(word if word in dims or word == WHOLE else PARTIAL for word in loops)


def summed_loops(loops: Placed) -> tuple[bool, ...]:
    """For each axis, whether ranks there see unlike rows: gradients of what they hold
    alike are to be summed over it."""
    return tuple(word in ROWS for word in loops)


def summands(operator: Operator, loop: str, handed: str) -> frozenset[str]:
    """The parameters, of one axis, whose gradient is a summand on each of its ranks:
    all that saw a part of the rows; the vectors of heads; the bias that is added to a
    part of a sum that was scattered."""
    names = parameter_dims(operator)
    if loop in ROWS:
        return frozenset(names)
    if loop == WHOLE:
        return frozenset()
    lacking = {name for name, dims in names.items() if loop not in map(dimension, dims)}
    added_once = operator.has_weight and not split(handed)
    return frozenset(() if added_once else lacking)


def parameter_dims(operator: Operator) -> dict[str, tuple[str, ...]]:
    """The operator's parameters by name, with their dimensions."""
    found: dict[str, tuple[str, ...]] = {}
    if operator.has_weight:
        weight = weight_of(operator)
        found["weight"] = weight.dims
        if operator.bias:
            found["bias"] = weight.dims[:1]
    for number in range(operator.vectors):
        name = ("weight", "bias")[number] if operator.vectors <= 2 else f"{number}"
        found[name] = (operator.vector_dim,)
    return found


def weight_of(operator: Operator) -> Tensor:
    """An operator's weight, as a tensor."""
    columns = "+".join(dict.fromkeys(operator.columns))
    return Tensor(name="weight", dims=(columns, operator.contracted or ""))


def module_sharding(
    operator: Operator,
    loops: Placed,
    handed: Placed,
    given: Sequence[Placed],
    *,
    block: str,
    axes: tuple[str, ...],
) -> ModuleSharding:
    """*operator* of *block* under *loops*, its inputs *given* so, in the words of
    contract 1."""
    output = operator.output
    return ModuleSharding(
        module=f"{block}.{operator.name}",
        axes=axes,
        parameters={
            name: _parameter(dims, loops)
            for name, dims in parameter_dims(operator).items()
        },
        inputs=tuple(
            InputSharding(
                tensor=tensor.name,
                dims=tensor.dims,
                given=_named(placed, tensor.dims),
                wanted=_named(wanted(tensor, loops), tensor.dims),
            )
            for tensor, placed in zip(operator.inputs, given, strict=True)
        ),
        output=OutputSharding(
            tensor=output.name,
            dims=output.dims,
            made=_named(made(operator, loops), output.dims),
            handed=_named(handed, output.dims),
        ),
        local=operator.kind in (*MIXERS, Kind.CROSS_ENTROPY),
    )


def loops_of(sharding: ModuleSharding, operator: Operator) -> Placed:
    """The loops that a sharding of *operator* means: `module_sharding` turned round.

    Raises InvalidSpec for placements that no loops have.
    """
    given = [_split_as(one.given) for one in sharding.inputs]
    handed = _split_as(sharding.output.handed)
    block = sharding.module.rpartition(".")[0]
    if len(given) == len(operator.inputs):
        words = (*splittable(operator), WHOLE)
        for loops in product(words, repeat=len(sharding.axes)):
            meant = module_sharding(
                operator, loops, handed, given, block=block, axes=sharding.axes
            )
            if meant == sharding:
                return loops
    raise InvalidSpec(
        f"{sharding.module}: its placements are of no split of one of its loops "
        f"({', '.join(splittable(operator))}) over {' × '.join(sharding.axes)}; "
        "`plan` writes those that are"
    )


def own_dims(tensor: Tensor) -> tuple[str, ...]:
    """The names under which a tensor is split."""
    return tuple(map(dimension, tensor.dims))


def _split_as(placed: Placed) -> Placed:
    return tuple(dimension(word) if split(word) else word for word in placed)


def _parameter(dims: tuple[str, ...], loops: Placed) -> ParameterSharding:
    placed = wanted(Tensor(name="parameter", dims=dims), loops)
    return ParameterSharding(dims=dims, placed=_named(placed, dims))


def _named(placed: Placed, dims: tuple[str, ...]) -> Placed:
    """A placement in the names of a tensor's own dimensions."""
    own = {dimension(name): name for name in dims}
    return tuple(own.get(word, word) for word in placed)


_ORDER = (None, "reduce_scatter", "all_to_all", "all_reduce", "all_gather")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One collective over one axis; bytes as the price of its kind takes them."""

    kind: str
    axis: MeshAxis
    size_bytes: float


def redistribution(
    have: Placed, want: Placed, axes: tuple[MeshAxis, ...], size_bytes: float
) -> tuple[Step, ...]:
    """What turns *have* into *want*, of a tensor of *size_bytes* over the whole mesh.

    >>> from costmodel.machine.topology import mesh_axes
    >>> mesh = mesh_axes(dp=2, tp=4)
    >>> for step in redistribution(
    ...     ("batch", "partial"), ("batch", "sequence"), mesh, size_bytes=1024.0
    ... ):
    ...     print(step.kind, step.axis.name, step.size_bytes)
    reduce_scatter tp 512.0
    """
    now, steps = list(have), []
    kinds = [redistribute(*pair) for pair in zip(have, want, strict=True)]
    for index in sorted(range(len(axes)), key=lambda one: _ORDER.index(kinds[one])):
        kind, axis = kinds[index], axes[index]
        if kind is not None and axis.size > 1:
            others = _shards(now, axes) // (axis.size if split(now[index]) else 1)
            held = size_bytes / others
            if kind == "all_to_all":
                held /= axis.size
            steps.append(Step(kind=kind, axis=axis, size_bytes=held))
        now[index] = want[index]
    return tuple(steps)


def local_bytes(placed: Placed, axes: tuple[MeshAxis, ...], size_bytes: float) -> float:
    """What one rank holds of a tensor of *size_bytes*."""
    return size_bytes / _shards(list(placed), axes)


def _shards(placed: list[str], axes: tuple[MeshAxis, ...]) -> int:
    words = zip(placed, axes, strict=True)
    return prod(axis.size for word, axis in words if split(word))
