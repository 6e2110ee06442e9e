"""Steps of a trace as operators of the graph: what each is priced as.

    matmul, convolution   a product with a weight: whatever has parameters of two or
                          more dimensions and FLOPs (linear layers, LSTMs too)
    matmul, shared        a product of two activations (attention written by hand)
    attention             scaled_dot_product_attention
    lookup, cross-entropy
    dispatch … combine    routed experts
    anything else         by the elements that its kernels move

A tensor has rows for each token of the job, of some width: `copies` say how many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

from profiles.models import Element, Kind, Operator, Tensor
from profiles.trace.steps import Parameter, Saved, Step

TOKENS: Final = ("batch", "sequence")
# Names of what is measured under another than PyTorch's.
_MEASURED: Final = {
    "layer_norm": "layernorm",
    "rms_norm": "rmsnorm",
    "batch_norm": "batchnorm",
    "group_norm": "groupnorm",
    "instance_norm": "groupnorm",
    "gelu": "exact-gelu",
    "relu_": "relu",
    "tanh_": "tanh",
    "cat": "concatenation",
    "embedding_bag": "embedding-bag",
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), "max-pool"),
}
_OF_TWO: Final = {"add": "residual", "add_": "residual", "mul": "product"}
_CONVOLUTIONS: Final = ("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose")
_TRANSPOSED: Final = ("addmm", "mm", "matmul")  # weight: contracted first
TABLES: Final = ("embedding", "embedding_bag")
LOOKED_UP: Final = (2.0, 3.0)  # elements an element of a lookup moves, either way
DROPPED: Final = (2.5, 2.5)  # of a dropout in one kernel, with a mask of bytes
LOSS: Final = (8.0, 5.0, 8)  # of a cross-entropy: elements either way, kernels


@dataclass(slots=True)
class Widths:
    """Lengths of the dimensions of a block, as they are met."""

    found: dict[str, int] = field(default_factory=dict)

    def named(self, size: int, prefix: str = "w") -> str:
        """The dimension that is so long."""
        name = f"{prefix}{size}"
        self.found[name] = size
        return name


@dataclass(slots=True, kw_only=True)
class Naming:
    """What the values of a layer are called, and how they are split over tp.

    `outer` are values of other layers; `inside` the dimension that a step's values are
    split along, with its length (none: they are whole).
    """

    tokens: int
    outer: Mapping[str, str]
    sizes: Mapping[str, tuple[float, tuple[int, ...]]] = field(default_factory=dict)
    local: dict[str, str] = field(default_factory=dict)
    inside: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    widths: Widths = field(default_factory=Widths)

    def tensor(
        self, value: str, elements: float, shape: tuple[int, ...], role: str = ""
    ) -> Tensor:
        """A value of the layer, or one that comes into it: all of it, also where a
        part is seen."""
        elements, shape = self.sizes.get(value, (elements, shape))
        name = self.local.get(value) or self.outer.get(value) or value
        return self.sized(name, elements, shape, split=role or value)

    def sized(
        self,
        name: str,
        elements: float,
        shape: tuple[int, ...],
        *,
        split: str = "",
        element: Element = Element.ACTIVATION,
        internal: bool = False,
    ) -> Tensor:
        """So many *elements* of a sample, as rows of the width of *shape*."""
        wide, length = self.inside.get(split, ("", 0))
        if not wide:
            length = width_of(shape)
            wide = self.widths.named(length)
        copies = elements / length / self.tokens
        return Tensor(
            name=name,
            dims=(*TOKENS, wide),
            element=element,
            copies=round(copies, 12),
            internal=internal,
        )


def width_of(shape: tuple[int, ...]) -> int:
    """Of a row: the last dimension; of pictures, the channels."""
    if len(shape) < 2:
        return 1
    return max(shape[1] if len(shape) > 3 else shape[-1], 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The parameters of a step: a matrix, and vectors beside it."""

    columns: int = 0
    contracted: int = 0
    bias: bool = False
    vectors: int = 0  # their elements together

    @classmethod
    def of(cls, step: Step, parameters: Iterable[Parameter]) -> Weights:
        """Of *step* with *parameters*."""
        held = list(parameters)
        wide = [one for one in held if len(one.shape) > 1 and one.elements > 1]
        beside = sum(one.elements for one in held if one not in wide)
        if not wide or not (step.flops.one or step.function in TABLES):
            return cls(vectors=sum(one.elements for one in held))
        total = sum(one.elements for one in wide)
        shape = wide[0].shape
        if step.function in TABLES:
            columns = shape[-1]
        elif step.function in _TRANSPOSED and "linear" not in step.function:
            columns = (
                shape[-1] if step.shape and step.shape[-1] == shape[-1] else shape[0]
            )
        elif step.function.startswith("conv_transpose"):
            columns = total // shape[0]
        else:
            columns = shape[0]
        one_bias = beside == columns
        return cls(
            columns=columns,
            contracted=total // columns,
            bias=one_bias,
            vectors=0 if one_bias else beside,
        )


def operator_of(
    step: Step,
    name: str,
    naming: Naming,
    parameters: Iterable[Parameter],
    *,
    shared: bool = False,
) -> Operator:
    """The operator of *step*, which is called *name*; *shared*: its weight is another
    operator's of the layer."""
    held = list(parameters)
    weights = Weights.of(step, held)
    output = naming.tensor(step.name, step.elements.one, step.shape)
    made = Operator(
        name=name,
        kind=Kind.ELEMENTWISE,
        function=_measured(step),
        inputs=_inputs(step, naming),
        output=output,
        saves=_saves(step, name, naming),
        kernels=max(step.kernels, 1),
        launches=float(max(step.kernels, 1)),
        without_gradient=0.0 if step.trains else float(max(step.kernels, 1)),
        frozen=bool(held) and not any(one.trained for one in held),
    )
    if step.function == "scaled_dot_product_attention":
        return _attention(step, made, naming)
    if step.function == "cross_entropy_loss":
        return _loss(step, made, naming)
    if weights.columns:
        return _product(step, made, weights, naming, shared, held)
    if step.flops.one:
        return _of_activations(step, made, naming)
    return _moving(step, made, weights, naming)


def _measured(step: Step) -> str:
    """What *step* is measured as; sums and products of two that are alike."""
    if step.function in _OF_TWO and step.read_shapes == (step.shape,) * 2:
        return _OF_TWO[step.function]
    if step.numbers.get("approximate") == "tanh":
        return "gelu"
    return _MEASURED.get(step.function, step.function)


def _sizes(step: Step, parameters: Iterable[Parameter]) -> tuple[int, ...]:
    """What the kernel of a convolution or a pooling is called with for a sample."""
    wide = next((one.shape for one in parameters if len(one.shape) > 2), ())
    given, sides = step.read_shapes[0], step.shape[2:]
    each = len(sides)
    stride, dilation = (step.numbers.get(name) for name in ("stride", "dilation"))
    if not each or dilation not in (None, (1,) * each, 1):
        return ()
    if wide:
        groups = step.numbers.get("groups", 1)
        steps = stride if isinstance(stride, tuple) else (stride or 1,) * each
        return (given[1], step.shape[1], groups, *given[2:], *sides, *wide[2:], *steps)
    window = step.numbers.get("kernel_size")
    if step.function.startswith("max_pool") and isinstance(window, tuple):
        return (given[1], *given[2:], *sides, *window)
    return ()


def _inputs(step: Step, naming: Naming) -> tuple[Tensor, ...]:
    """What it reads that gradients pass: of this layer or of one before."""
    return tuple(
        naming.tensor(value, prod(shape), shape)
        for value, shape in zip(step.reads, step.read_shapes, strict=True)
        if value in naming.local or value in naming.outer
    )


def _saves(step: Step, name: str, naming: Naming) -> tuple[Tensor, ...]:
    found: dict[str, Tensor] = {}
    for number, one in enumerate(step.saves):
        if one.elements.each <= 0 or _of_input(one, naming):
            continue
        tensor = _saved(step, one, f"{name}_saved{number}", naming)
        found.setdefault(tensor.name, tensor)
    return tuple(found.values())


def _of_input(one: Saved, naming: Naming) -> bool:
    """Whether it is the module's input, which is there anyway."""
    known = naming.local.keys() | naming.outer.keys()
    return not one.internal and one.floating is False and one.value not in known


def _saved(step: Step, one: Saved, name: str, naming: Naming) -> Tensor:
    count = one.elements.one
    known = one.value in naming.local or one.value in naming.outer
    if one.floating and known:
        shape = _shape_of(step, one)
        return naming.tensor(one.value, count, shape)
    if not one.floating:  # masks and indices, in bytes
        shape = (1, 1)
        return naming.sized(
            name, count * one.itemsize, shape, element=Element.MASK, internal=True
        )
    if "dropout" in step.function:
        return naming.sized(
            name, count, step.shape, element=Element.MASK, internal=True
        )
    statistics = count < min(step.elements.one, *map(prod, step.read_shapes), 1e18)
    element = Element.FP32 if statistics else Element.ACTIVATION
    wide = step.shape if step.elements.one == count else (1, 1)
    split = step.name if step.name in naming.inside else ""
    return naming.sized(name, count, wide, element=element, internal=True, split=split)


def _shape_of(step: Step, one: Saved) -> tuple[int, ...]:
    if one.value == step.name:
        return step.shape
    for value, shape in zip(step.reads, step.read_shapes, strict=True):
        if value == one.value and prod(shape) == one.elements.one:
            return shape
    return (1, 1)


def _product(
    step: Step,
    made: Operator,
    weights: Weights,
    naming: Naming,
    shared: bool,
    parameters: Iterable[Parameter],
) -> Operator:
    widths = naming.widths
    columns, contracted = (
        widths.named(weights.columns),
        widths.named(weights.contracted),
    )
    if step.function in TABLES:
        forward, backward = LOOKED_UP
        return replace(
            made,
            kind=Kind.EMBEDDING,
            function="lookup" if step.function == "embedding" else made.function,
            sizes=_bags(step, weights),
            columns=(columns,),
            contracted=widths.named(weights.contracted, "rows"),
            inputs=(),
            forward_elements=forward,
            backward_elements=backward,
            shared=shared,
        )
    rows = step.flops.one / 2 / (weights.columns * weights.contracted)
    convolves = step.function.startswith(_CONVOLUTIONS)
    return replace(
        made,
        kind=Kind.MATMUL,
        function="convolution" if convolves else "matmul",
        sizes=_sizes(step, parameters) if convolves else (),
        columns=(columns,),
        contracted=contracted,
        bias=weights.bias,
        vectors=1 if weights.vectors and not shared else 0,
        vector_dim=widths.named(weights.vectors or 1, "p"),
        rows=_share(rows, naming),
        shared=shared,
        kernels=1,
        launches=float(step.kernels),
    )


def _bags(step: Step, weights: Weights) -> tuple[int, ...]:
    """Of a bag: its rows, the table's, and their width."""
    if step.function != "embedding_bag" or not step.read_shapes:
        return ()
    count = prod(step.read_shapes[0]) // max(step.shape[0], 1)
    return (max(count, 1), weights.contracted, weights.columns)


def _of_activations(step: Step, made: Operator, naming: Naming) -> Operator:
    """A product of two activations: no parameters, both gradients."""
    columns = max(step.shape[-1], 1)
    rows = step.elements.one / columns
    contracted = max(round(step.flops.one / 2 / max(step.elements.one, 1)), 1)
    return replace(
        made,
        kind=Kind.MATMUL,
        function="matmul",
        columns=(naming.widths.named(columns),),
        contracted=naming.widths.named(contracted),
        rows=_share(rows, naming),
        shared=True,
        frozen=False,
        launches=float(step.kernels),
    )


def _attention(step: Step, made: Operator, naming: Naming) -> Operator:
    """Of heads, a row for each query; it keeps queries, keys, values and its output."""
    query, key = (
        step.read_shapes[0],
        step.read_shapes[min(1, len(step.read_shapes) - 1)],
    )
    shapes = attention_shapes(step)
    if shapes is not None:
        query, key = shapes[:2]
    rows = prod(query) / query[-1] / query[1]
    kept = {one.name: one for one in made.inputs} | {made.output.name: made.output}
    return replace(
        made,
        kind=Kind.ATTENTION,
        function="attention",
        saves=tuple(kept.values()),
        rows=_share(rows, naming),
        keys=_share(key[-2], naming),
        causal=bool(step.numbers.get("is_causal", False)),
        kernels=1,
        launches=1.0,
    )


def attention_shapes(step: Step) -> tuple[tuple[int, ...], ...] | None:
    """Shapes of queries, keys and values, as the kernel is given them."""
    found = step.numbers.get("shapes")
    return found if isinstance(found, tuple) else None


def _loss(step: Step, made: Operator, naming: Naming) -> Operator:
    forward, backward, kernels = LOSS
    logits = step.read_shapes[0]
    softmax = naming.sized(
        f"{made.name}_softmax",
        prod(logits),
        logits,
        element=Element.FP32,
        internal=True,
    )
    return replace(
        made,
        kind=Kind.CROSS_ENTROPY,
        function="cross-entropy",
        inputs=made.inputs[:1],
        saves=(softmax,),
        forward_elements=forward,
        backward_elements=backward,
        kernels=kernels,
        rows=_share(prod(logits) / width_of(logits), naming),
    )


def _moving(step: Step, made: Operator, weights: Weights, naming: Naming) -> Operator:
    out = max(step.elements.one, 1.0)
    if step.function == "dropout" and made.saves:
        forward, backward = DROPPED
        return replace(
            made,
            forward_elements=forward,
            backward_elements=backward,
            kernels=1,
            launches=1.0,
        )
    return replace(
        made,
        sizes=_sizes(step, ()) if step.read_shapes else (),
        rows=made.output.copies,
        vectors=1 if weights.vectors else 0,
        vector_dim=naming.widths.named(weights.vectors or 1, "p"),
        forward_elements=step.moved.one / out,
        backward_elements=step.backward_moved.one / out if step.trains else 0.0,
    )


def _share(rows: float, naming: Naming) -> float:
    return round(rows / naming.tokens, 12)
