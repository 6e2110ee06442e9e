"""Tensor parallelism of any module: its linear layers as DTensors over the tp axis.

    gathered   output features split, the whole output gathered: right in any module
    column     output features split and left so (Megatron's first product)
    row        input features split, the partial sums reduced (its second)

What no style is given for is gathered, where tp divides its output features. A column
hands slices to the code that follows: that must not count on the whole width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from profiles.errors import Contradiction

STYLES: Final[dict[str, Callable[[], Any]]] = {
    "gathered": lambda: ColwiseParallel(output_layouts=Replicate()),
    "column": ColwiseParallel,
    "row": RowwiseParallel,
}
Styles = Mapping[str, str]  # pattern of a module's name → style


def place(module: nn.Module, mesh: DeviceMesh, styles: Styles) -> None:
    """Split the linear layers of *module* in place; *mesh* is the tp axis.

    Raises Contradiction for a style that is not known, a pattern that names no linear
    layer, or features that do not divide.
    """
    if mesh.size() == 1:
        return
    linears = {
        name: one for name, one in module.named_modules() if isinstance(one, nn.Linear)
    }
    shared = _shared(module)
    _require_found(styles, linears)
    for name, linear in linears.items():
        asked = next((s for p, s in styles.items() if fnmatchcase(name, p)), None)
        features = linear.in_features if asked == "row" else linear.out_features
        divides = features % mesh.size() == 0 and id(linear.weight) not in shared
        if asked is not None and not divides:
            raise Contradiction(
                f"{name} cannot be split {mesh.size()} ways as {asked!r}: it has "
                f"{features} features, or shares its weight with another module"
            )
        if divides:
            parallelize_module(linear, mesh, STYLES[asked or "gathered"]())


def _shared(module: nn.Module) -> set[int]:
    """Parameters that two modules hold: a slice of one would not be the other's."""
    named = module.named_parameters(remove_duplicate=False)
    counted = Counter(id(parameter) for _, parameter in named)
    return {parameter for parameter, times in counted.items() if times > 1}


def _require_found(styles: Styles, linears: Mapping[str, nn.Linear]) -> None:
    for pattern, style in styles.items():
        if style not in STYLES:
            raise Contradiction(
                f"style {style!r} of {pattern!r} is not one of {', '.join(STYLES)}"
            )
        if not any(fnmatchcase(name, pattern) for name in linears):
            raise Contradiction(
                f"{pattern!r} names no nn.Linear of the module; it has "
                f"{', '.join(list(linears)[:8])}"
            )
