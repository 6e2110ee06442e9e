"""A module's own code, tried with a part of its heads and widths on the meta device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from profiles.trace.factory import Example
from profiles.trace.huggingface import as_in_training
from profiles.trace.routed import opaque
from profiles.trace.split import Split, degrees_of, splits_of, styles_of
from profiles.trace.steps import Trace

_ATTENTION: Final = ("scaled_dot_product_attention", "matmul", "bmm", "__matmul__")
Shapes = list[tuple[tuple[int, ...], ...]]


def splittable(
    trace: Trace, module: nn.Module, example: Example
) -> tuple[tuple[int, ...], str]:
    """Degrees of tensor parallelism that *module* runs with, above 1, and why there are
    not more. *module* is on the meta device."""
    splits = splits_of(trace)
    degrees = degrees_of(splits, trace)
    if not degrees:
        return (), (
            f"most of the weights of {trace.name} are in no pair of linear layers "
            "around attention or an MLP that could be split"
        )
    with as_in_training(), opaque(module), torch.no_grad():
        whole = _run(module, example)
        for number, degree in enumerate(degrees):
            wrong = _unlike(module, example, splits, degree, whole)
            if wrong:
                return degrees[:number], wrong
    return degrees, f"its heads and widths divide by {', '.join(map(str, degrees))}"


def _run(module: nn.Module, example: Example) -> tuple[Shapes, list[torch.Size]]:
    seen = _Seen()
    with seen:
        made = module(*example.args, **example.kwargs)
    return seen.shapes, [
        one.shape for one in tree_leaves(made) if isinstance(one, Tensor)
    ]


def _unlike(
    module: nn.Module,
    example: Example,
    splits: Sequence[Split],
    degree: int,
    whole: tuple[Shapes, list[torch.Size]],
) -> str:
    """Why the code does not run in *degree* parts; "" where it does."""
    try:
        with _narrow(module, splits, degree):
            shapes, made = _run(module, example)
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        return f"its code does not run with {degree} parts of its heads ({said[:120]})"
    if made != whole[1] or len(shapes) != len(whole[0]):
        return f"its code gives other shapes with {degree} parts of its heads"
    if not all(
        _fewer(one, part, degree) for one, part in zip(whole[0], shapes, strict=True)
    ):
        return f"its code makes narrower heads, not fewer, of {degree} parts"
    return ""


def _fewer(
    whole: Sequence[tuple[int, ...]], part: Sequence[tuple[int, ...]], degree: int
) -> bool:
    """Whether operands are as before, or have fewer heads."""
    for one, other in zip(whole, part, strict=True):
        if one == other:
            continue
        if one[-2:] != other[-2:] or len(one) < 3:
            return False
        unlike = [a for a, b in zip(one, other, strict=True) if a != b * degree]
        if len(unlike) != len(one) - 1:
            return False
    return True


class _Seen(TorchFunctionMode):
    """Notes the shapes that attention is given."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Shapes = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__name__", "") in _ATTENTION:
            given = [
                tuple(one.shape)
                for one in tree_leaves((args, named))
                if isinstance(one, Tensor)
            ]
            if len(given) > 1 and min(map(len, given[:2])) > 2:
                self.shapes.append(tuple(given[:3]))
        return func(*args, **named)


@contextmanager
def _narrow(module: nn.Module, splits: Sequence[Split], degree: int) -> Iterator[None]:
    """Its linear layers with a rank's part of their weights."""
    with ExitStack() as undo:
        for path, style in styles_of(splits):
            linear: Any = module.get_submodule(path)
            undo.callback(linear._parameters.update, dict(linear._parameters))
            outer, inner = linear.weight.shape
            if style == "column":
                outer //= degree
            else:
                inner //= degree
            linear._parameters["weight"] = nn.Parameter(
                torch.empty((outer, inner), device="meta"), requires_grad=False
            )
            if linear.bias is not None and style == "column":
                linear._parameters["bias"] = nn.Parameter(
                    torch.empty(outer, device="meta"), requires_grad=False
                )
        yield
