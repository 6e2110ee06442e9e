"""Tensor parallelism of any module: its linear layers as DTensors over the tp axis.

    gathered   output features split, the whole output gathered: right in any module
    column     output features split and left so (Megatron's first product)
    row        input features split, the partial sums reduced (its second)

What no style is given for is gathered, where tp divides its output features. A column
hands slices to the code that follows: that must not count on the whole width. Hugging
Face's Conv1D (GPT-2's) is a linear layer whose weight is transposed.

A layout's tp says how much a rank holds and computes: a module most of whose weights
are in nothing that is split is refused.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from profiles.errors import Contradiction, Unsupported

STYLES: Final[dict[str, Callable[[], Any]]] = {
    "gathered": lambda: ColwiseParallel(output_layouts=Replicate()),
    "column": ColwiseParallel,
    "row": RowwiseParallel,
}
Styles = Mapping[str, str]  # pattern of a module's name → style


def place(module: nn.Module, mesh: DeviceMesh, styles: Styles) -> None:
    """Split the linear layers of *module* in place; *mesh* is the tp axis.

    Raises Contradiction for a style that is not known, a pattern that names no linear
    layer, or features that do not divide; Unsupported where little would be split.
    """
    if mesh.size() == 1:
        return
    linears = {name: one for name, one in module.named_modules() if _is_linear(one)}
    shared = _shared(module)
    _require_found(styles, linears)
    found: dict[str, str] = {}
    for name, linear in linears.items():
        asked = next((s for p, s in styles.items() if fnmatchcase(name, p)), None)
        inner, outer = _features(linear)
        features = inner if asked == "row" else outer
        divides = features % mesh.size() == 0 and id(linear.weight) not in shared
        if asked is not None and not divides:
            raise Contradiction(
                f"{name} cannot be split {mesh.size()} ways as {asked!r}: it has "
                f"{features} features, or shares its weight with another module"
            )
        if divides:
            found[name] = asked or "gathered"
    _require_most_split(module, {id(linears[name].weight) for name in found}, mesh)
    for name, style in found.items():
        _split(linears[name], mesh, style)


def _is_linear(one: nn.Module) -> bool:
    """Whether calling *one* is the product that its weight says: a subclass may give
    something else, or (as in `nn.MultiheadAttention`) only hold the weight."""
    if isinstance(one, NonDynamicallyQuantizableLinear):
        return False
    return type(one).forward is nn.Linear.forward or _is_transposed(one)


def _is_transposed(one: nn.Module) -> bool:
    known = sys.modules.get("transformers.pytorch_utils")
    return known is not None and type(one) is known.Conv1D


def _features(linear: Any) -> tuple[int, int]:
    inner, outer = linear.weight.shape[:: 1 if _is_transposed(linear) else -1]
    return inner, outer


def _split(linear: nn.Module, mesh: DeviceMesh, style: str) -> None:
    how = STYLES[style]()
    if not _is_transposed(linear):
        parallelize_module(linear, mesh, how)
        return
    row = style == "row"
    cuts: dict[str, Placement] = {
        "weight": Shard(0 if row else 1),
        "bias": Replicate() if row else Shard(0),
    }

    def cut(name: str, one: nn.Module, mesh: DeviceMesh) -> None:
        for own, parameter in list(one.named_parameters()):
            spread = distribute_tensor(parameter, mesh, [cuts[own]])
            made = nn.Parameter(spread, requires_grad=parameter.requires_grad)
            one.register_parameter(own, made)

    wanted = (Shard(-1) if row else Replicate(),)
    distribute_module(
        linear,
        mesh,
        cut,
        partial(how._prepare_input_fn, how.input_layouts, wanted),
        partial(how._prepare_output_fn, how.output_layouts, how.use_local_output),
    )


def _require_most_split(module: nn.Module, split: set[int], mesh: DeviceMesh) -> None:
    """Raise Unsupported where less than half of the weights, tables of embeddings
    aside, are split."""
    tables = {
        id(one)
        for part in module.modules()
        if isinstance(part, nn.Embedding)
        for one in part.parameters()
    }
    weights = {
        name: one
        for name, one in module.named_parameters()
        if one.ndim > 1 and id(one) not in tables
    }
    left = {name: one for name, one in weights.items() if id(one) not in split}
    whole = sum(one.numel() for one in weights.values())
    over = sum(one.numel() for one in left.values())
    if 2 * over > whole:
        largest = sorted(left, key=lambda name: -left[name].numel())[:3]
        raise Unsupported(
            f"tp {mesh.size()} would split {1 - over / whole:.0%} of the weights of "
            f"{type(module).__name__}, and not {', '.join(largest)}: linear layers "
            f"(nn.Linear, Conv1D) whose features {mesh.size()} divides are split; plan "
            "with --tp 1"
        )


def _shared(module: nn.Module) -> set[int]:
    """Parameters that two modules hold: a slice of one would not be the other's."""
    named = module.named_parameters(remove_duplicate=False)
    counted = Counter(id(parameter) for _, parameter in named)
    return {parameter for parameter, times in counted.items() if times > 1}


def _require_found(styles: Styles, linears: Mapping[str, nn.Module]) -> None:
    for pattern, style in styles.items():
        if style not in STYLES:
            raise Contradiction(
                f"style {style!r} of {pattern!r} is not one of {', '.join(STYLES)}"
            )
        if not any(fnmatchcase(name, pattern) for name in linears):
            raise Contradiction(
                f"{pattern!r} names no linear layer of the module; it has "
                f"{', '.join(list(linears)[:8])}"
            )
