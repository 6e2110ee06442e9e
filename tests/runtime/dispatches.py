"""Counts what PyTorch dispatches: on a GPU about as many kernels."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

# What launches nothing.
VIEWS = frozenset(
    (
        *("view", "_unsafe_view", "t", "transpose", "expand", "select", "slice"),
        *("unsqueeze", "squeeze", "detach", "alias", "as_strided", "permute"),
        *("split", "split_with_sizes", "unbind", "_reshape_alias", "reshape"),
        *("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"),
        *("view_as", "unfold", "lift_fresh"),
    )
)


class Dispatches(TorchDispatchMode):
    """Inside, `seen` counts operators by name, but for views and empty tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name.split("::")[1]
        if name not in VIEWS:
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return self.seen.total()
