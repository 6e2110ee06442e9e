"""A module's own code, tried with a part of its heads and widths on the meta device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from profiles.models import SplitLayer
from profiles.trace.factory import Example
from profiles.trace.huggingface import as_in_training
from profiles.trace.lower import Parallel
from profiles.trace.routed import opaque
from profiles.trace.split import degrees_of, split_layers, splits_of
from profiles.trace.steps import Trace

_ATTENTION: Final = ("scaled_dot_product_attention", "matmul", "bmm", "__matmul__")
_WIDE: Final = ("dim", "size", "embd", "embed", "hidden", "width", "inner")
Shapes = list[tuple[tuple[int, ...], ...]]


def splittable(trace: Trace, module: nn.Module, example: Example) -> Parallel:
    """What *module*, which is on the meta device, runs with. Numbers in its code stay
    as they are where it runs so."""
    splits = splits_of(trace)
    degrees, layers = degrees_of(splits, trace), split_layers(splits)
    if not degrees:
        return Parallel(
            whole=f"most of the weights of {trace.name} are in no pair of linear "
            "layers around attention or an MLP that could be split"
        )
    with as_in_training(), opaque(module), torch.no_grad():
        whole = _run(module, example)
        for counts in ((), tuple(_counts(module, layers))):
            runs, wrong = 0, ""
            for degree in degrees:
                asked = _Narrow(layers=layers, counts=counts, degree=degree)
                wrong = _unlike(module, example, asked, whole)
                if wrong:
                    break
                runs += 1
            if runs:
                break
    said = f"its heads and widths divide by {', '.join(map(str, degrees))}"
    return Parallel(degrees=degrees[:runs], whole=wrong or said, counts=counts)


def _counts(
    module: nn.Module, layers: Sequence[SplitLayer]
) -> Iterator[tuple[str, str]]:
    """Numbers of heads in the code around split layers, and widths there that lie side
    by side in one of them."""
    widths: dict[str, set[int]] = {}
    for one in layers:
        widths.setdefault(one.path.rpartition(".")[0], set()).update(one.parts)
    for path, parts in widths.items():
        for name, value in vars(module.get_submodule(path)).items():
            if not isinstance(value, int) or isinstance(value, bool):
                continue
            wide = value in parts and any(one in name for one in _WIDE)
            if wide or ("head" in name and "dim" not in name):
                yield path, name


def _run(module: nn.Module, example: Example) -> tuple[Shapes, list[torch.Size]]:
    seen = _Seen()
    with seen:
        made = module(*example.args, **example.kwargs)
    return seen.shapes, [
        one.shape for one in tree_leaves(made) if isinstance(one, Tensor)
    ]


def sides_of(layer: Any) -> tuple[int, int]:
    """Which dimensions of its weight are its columns and its rows."""
    return (0, 1) if isinstance(layer, nn.Linear) else (1, 0)


def _unlike(
    module: nn.Module,
    example: Example,
    asked: _Narrow,
    whole: tuple[Shapes, list[torch.Size]],
) -> str:
    """Why the code does not run in so many parts; "" where it does."""
    degree = asked.degree
    try:
        with asked.tried(module):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Narrow:
    """A rank's part of the weights of *layers* and of the numbers of *counts*."""

    layers: Sequence[SplitLayer]
    counts: Sequence[tuple[str, str]]
    degree: int

    @contextmanager
    def tried(self, module: nn.Module) -> Iterator[None]:
        """*module* as a rank has it."""
        with ExitStack() as undo:
            for path, name in self.counts:
                one = module.get_submodule(path)
                undo.callback(setattr, one, name, getattr(one, name))
                setattr(one, name, getattr(one, name) // self.degree)
            for layer in self.layers:
                self._split(module.get_submodule(layer.path), layer.style, undo)
            yield

    def _split(self, layer: Any, style: str, undo: ExitStack) -> None:
        undo.callback(layer._parameters.update, dict(layer._parameters))
        undo.callback(layer.__dict__.update, dict(layer.__dict__))
        columns, rows = sides_of(layer)
        shape = list(layer.weight.shape)
        side = columns if style == "column" else rows
        wide = shape[side]
        shape[side] //= self.degree
        layer._parameters["weight"] = self._empty(shape)
        if style == "row":
            return
        if getattr(layer, "bias", None) is not None:
            layer._parameters["bias"] = self._empty([wide // self.degree])
        for name, value in list(vars(layer).items()):
            if value == wide and type(value) is int:  # its own width
                setattr(layer, name, wide // self.degree)

    @staticmethod
    def _empty(shape: Sequence[int]) -> nn.Parameter:
        empty = torch.empty(*shape, device="meta")
        return nn.Parameter(empty, requires_grad=False)
