"""How many tokens a module knows: the rows of the table that its tokens are looked up
in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from profiles.trace.factory import Example
from profiles.trace.huggingface import as_in_training
from profiles.trace.routed import opaque


def vocabulary_of(module: nn.Module, example: Example, tokens: Tensor) -> int | None:
    """Rows of the table that *module*, called with *example*, looks *tokens* up in (an
    input of it; all on the meta device); None where there is none."""
    seen = _Lookups(tokens)
    with as_in_training(), opaque(module), seen, torch.no_grad():
        module(*example.args, **example.kwargs)
    return seen.rows


class _Lookups(TorchFunctionMode):
    def __init__(self, tokens: Tensor) -> None:
        super().__init__()
        self.rows: int | None = None
        self._storage = tokens.untyped_storage()._cdata

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if func is nn.functional.embedding and self.rows is None:
            indices = args[0] if args else named["input"]
            weight = args[1] if len(args) > 1 else named["weight"]
            if indices.untyped_storage()._cdata == self._storage:
                self.rows = len(weight)
        return func(*args, **named)
