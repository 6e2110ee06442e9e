"""A module as it is, for layouts without a pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from runtime.modules.samples import Samples


class WholeStage(nn.Module):
    """The user's module, from numbers of samples to its loss."""

    def __init__(
        self, module: nn.Module, samples: Samples, paths: Sequence[str]
    ) -> None:
        super().__init__()
        self.module, self.samples, self._paths = module, samples, tuple(paths)

    def forward(self, numbers: Tensor, targets: Tensor | None = None) -> Tensor:
        given = self.samples.inputs(numbers[:, 0])
        made = self.module(*given.args, **given.kwargs)
        leaves = [
            one
            for one in tree_leaves(made)
            if isinstance(one, Tensor) and one.is_floating_point()
        ]
        scalars = [one for one in leaves if one.ndim == 0]
        return scalars[0] if scalars else leaves[0].float().square().mean()

    def split(self, styles: Iterable[tuple[str, str]], mesh: DeviceMesh) -> None:
        """Split linear layers over the tp axis *mesh*: column or row, by path."""
        made = {"column": ColwiseParallel, "row": RowwiseParallel}
        for path, style in styles:
            linear = self.module.get_submodule(path)
            parallelize_module(linear, mesh, made[style]())

    def recompute(self, paths: Collection[str]) -> None:
        """Run the modules at *paths* once more in backward."""
        for path in paths:
            unit = self.module.get_submodule(path)
            unit.forward = partial(checkpoint, unit.forward, use_reentrant=False)

    def units(self) -> list[nn.Module]:
        """Its layers that have their parameters for themselves."""
        every = Counter(
            id(one) for _, one in self.module.named_parameters(remove_duplicate=False)
        )
        found = [self.module.get_submodule(path) for path in self._paths]
        return [
            unit
            for unit in found
            if all(every[id(one)] == 1 for one in unit.parameters())
        ]

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """By the user's names."""
        inside = self.module.named_parameters(prefix, recurse, remove_duplicate)
        yield from inside

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """By the user's names too."""
        held = super().state_dict(*args, **kwargs)
        return {name.removeprefix("module."): one for name, one in held.items()}
