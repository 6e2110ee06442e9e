"""A user's module by `package.module:factory`, and the inputs that it is given.

Only what is named on the command line (or in a Python call) is imported, from where
`python -m` would find it. The factory makes a module, or a module with its inputs. To
be traced it is called with tensors on the meta device, which need no memory.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from profiles.errors import InvalidSpec, MeshwrightError, UnknownName, Unsupported
from profiles.files import shown
from profiles.trace.huggingface import inputs_of_pretrained, without_cache

REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LIBRARIES: Final = (os.path.dirname(torch.__file__), os.path.dirname(__file__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What a module is called with: tensors whose first dimension is the batch."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Length of the first dimension of the first tensor."""
        return len(self._tensors()[0])

    def batched(self, one: Any) -> bool:
        """Whether *one* is a tensor of so many samples."""
        return isinstance(one, Tensor) and one.ndim > 0 and len(one) == self.batch

    def with_batch(self, batch: int) -> Example:
        """The samples in turn, *batch* of them."""
        own = self.batch

        def again(one: Tensor) -> Tensor:
            if not self.batched(one):
                return one
            return torch.cat([one] * -(-batch // own))[:batch]

        return self.map(again)

    def map(self, change: Any) -> Example:
        """Every tensor changed."""
        args, kwargs = tree_map_only(Tensor, change, (self.args, dict(self.kwargs)))
        return Example(args=args, kwargs=kwargs)

    def _tensors(self) -> list[Tensor]:
        leaves = tree_leaves((self.args, dict(self.kwargs)))
        return [one for one in leaves if isinstance(one, Tensor) and one.ndim]

    @property
    def seq_len(self) -> int:
        """Tokens of a sample, where its first input is of token numbers; else 1."""
        first = self._tensors()[0]
        return (
            first.shape[1] if first.ndim == 2 and not first.is_floating_point() else 1
        )


def module_of(
    reference: str, *, seq_len: int | None = None, meta: bool = True
) -> tuple[nn.Module, Example]:
    """What the factory makes, ready to train, and its inputs.

    Raises UnknownName, InvalidSpec and Unsupported, each with what to do.
    """
    factory = _found(reference)
    made = _called(reference, factory, meta=meta)
    module, given = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise InvalidSpec(
            f"{reference} gives what is {_kind(module)}; it must return an nn.Module, "
            "or an nn.Module and its inputs"
        )
    device = torch.device("meta" if meta else "cpu")
    example = _example(reference, module, given, seq_len, device)
    if not example._tensors():
        raise InvalidSpec(
            f"the inputs of {reference} hold no tensor with a batch dimension; give "
            "tensors whose first dimension is the batch"
        )
    if seq_len not in (None, 1, example.seq_len):
        raise Unsupported(
            f"--seq-len {seq_len}: the inputs of {reference} have sequences of "
            f"{example.seq_len}; give inputs of that length, or leave --seq-len out"
        )
    return without_cache(module).train(), example


@contextmanager
def users_path() -> Iterator[None]:
    """Modules are found where `python -m` finds them: in the working directory too."""
    here = os.getcwd()
    if "" in sys.path or here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _found(reference: str) -> Any:
    if not REFERENCE.fullmatch(reference):
        raise InvalidSpec(f"{shown(reference)} is not package.module:factory")
    name, _, attribute = reference.partition(":")
    with users_path():
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if name == missing or name.startswith(f"{missing}."):
                raise InvalidSpec(
                    f"there is no module {missing!r} to import {reference} from; run "
                    "in the folder that holds it, or put that on PYTHONPATH"
                ) from None
            raise InvalidSpec(f"importing {name} failed: {_told(error)}") from error
        except (Exception, SystemExit) as error:
            raise InvalidSpec(f"importing {name} failed: {_told(error)}") from error
    if not hasattr(module, attribute):
        functions = [one for one in vars(module) if callable(vars(module)[one])]
        raise UnknownName(f"factory of {name}", attribute, functions)
    factory = getattr(module, attribute)
    if not callable(factory):
        raise InvalidSpec(
            f"{reference} is {_kind(factory)}, not a function that returns an nn.Module"
        )
    return factory


def _called(reference: str, factory: Any, *, meta: bool) -> Any:
    """Its module, without memory where *meta*; with it where the module's making reads
    numbers, which the meta device has not."""
    with users_path():
        if meta:
            try:
                with torch.device("meta"):
                    return factory()
            except (NotImplementedError, RuntimeError) as error:
                if "meta" not in str(error):
                    raise InvalidSpec(f"{reference} failed: {_told(error)}") from error
            except (Exception, SystemExit) as error:
                raise InvalidSpec(f"{reference} failed: {_told(error)}") from error
        try:
            return factory()
        except (Exception, SystemExit) as error:
            raise InvalidSpec(f"{reference} failed: {_told(error)}") from error


def _example(
    reference: str,
    module: nn.Module,
    given: Any,
    seq_len: int | None,
    device: torch.device,
) -> Example:
    """From the factory, the module's `example_inputs()`, or its configuration."""
    if given is None and hasattr(module, "example_inputs"):
        given = module.example_inputs
    if callable(given):
        try:
            with device:
                given = given()
        except (Exception, SystemExit) as error:
            raise InvalidSpec(
                f"example_inputs() of {reference} failed: {_told(error)}"
            ) from error
    if given is None:
        given = inputs_of_pretrained(module, seq_len, device)
    if isinstance(given, Tensor):
        return Example(args=(given,))
    if isinstance(given, Mapping):
        return Example(kwargs=dict(given))
    if isinstance(given, tuple | list):
        return Example(args=tuple(given))
    raise InvalidSpec(
        f"{reference} says no inputs: let it return (module, inputs), or give the "
        "module a method example_inputs() that returns a tensor, tuple or dictionary"
    )


def _kind(one: object) -> str:
    return f"of type {type(one).__name__}"


def _told(error: BaseException) -> str:
    """An error in one line, with the user's line that raised it."""
    if isinstance(error, MeshwrightError):
        return str(error)
    said = str(error).strip().splitlines() or [""]
    where = users_line(error.__traceback__)
    return f"{type(error).__name__}: {said[0]}" + (f" ({where})" if where else "")


def users_line(trace: TracebackType | None) -> str:
    """The innermost line of a traceback that is not of PyTorch or of this package."""
    found = ""
    for frame, number in traceback.walk_tb(trace):
        if _is_users(frame):
            name = os.path.basename(frame.f_code.co_filename)
            found = f"{name}, line {number}, in {frame.f_code.co_name}"
    return found


def _is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    known = (*_LIBRARIES, os.path.dirname(importlib.__file__), "<")
    return not name.startswith(known)
