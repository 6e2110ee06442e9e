"""`torch.export` of a module over a batch of any size, and why it may not succeed."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, Final

from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_map

from profiles.errors import Unsupported
from profiles.trace.factory import Example, users_line

BATCH: Final = 3  # traced with: no number that a shape is likely to be compared with
_DATA: Final = ("data-dependent", "data dependent", "DataDependent", "unbacked")


def exported(module: nn.Module, example: Example, reference: str) -> ExportedProgram:
    """The forward of *module* as a graph of PyTorch's operators, its batch free.

    Raises Unsupported with the user's line that stopped it, and what to do.
    """
    given = example.with_batch(BATCH)
    if len(given.args) == 1 and isinstance(given.args[0], list):
        given = Example(args=tuple(given.args), kwargs=given.kwargs)

    def free(one: Any) -> Any:
        batched = isinstance(one, Tensor) and one.ndim and len(one) == BATCH
        return {0: Dim.DYNAMIC} if batched else None

    shapes = tree_map(free, (given.args, dict(given.kwargs)))
    named = {**_by_name(module, shapes[0]), **shapes[1]}
    try:
        with _quiet():
            return export(
                module,
                given.args,
                dict(given.kwargs),
                dynamic_shapes=named,
                strict=False,
            )
    except (Exception, SystemExit) as error:
        raise Unsupported(_refusal(reference, error)) from error


def _by_name(module: nn.Module, shapes: tuple[Any, ...]) -> dict[str, Any]:
    import inspect

    names = list(inspect.signature(module.forward).parameters.values())
    found: dict[str, Any] = {}
    for place, shape in enumerate(shapes):
        if names[min(place, len(names) - 1)].kind is inspect.Parameter.VAR_POSITIONAL:
            found[names[-1].name] = tuple(shapes[place:])
            break
        found[names[place].name] = shape
    return found


def _refusal(reference: str, error: BaseException) -> str:
    said = " ".join(str(error).strip().split()) or type(error).__name__
    where = users_line(error.__traceback__) or "its forward"
    if isinstance(error, GuardOnDataDependentSymNode) or any(
        one in said or one in type(error).__name__ for one in _DATA
    ):
        return depends_on_numbers(reference, where)
    if "dynamic" in said and ("specializ" in said or "Constraints violated" in said):
        return (
            f"{reference} does not trace for any batch: at {where} it fixes the first "
            "dimension of an input; take it from the input's shape"
        )
    return (
        f"{reference} does not trace: at {where}: {type(error).__name__}: {said[:200]}"
    )


def depends_on_numbers(reference: str, where: str) -> str:
    """Why a module is refused that looks into its tensors, and what to do."""
    return (
        f"{reference} does not trace: at {where} a shape or a branch depends on the "
        "numbers in a tensor; use torch.where or masks of fixed shape, or route tokens "
        "by a block that is known (Hugging Face's experts)"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what export tells its own developers."""
    loggers = [logging.getLogger(one) for one in ("torch.export", "torch.fx", "torch")]
    before = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            redirect_stdout(StringIO()),  # it prints the graph that it gives up
            redirect_stderr(StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)
