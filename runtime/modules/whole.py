"""A module as it is, for layouts without a pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from profiles.models import ModuleSpec, SplitLayer
from profiles.trace import sides_of
from runtime.checkpoint import SideBySide
from runtime.modules.samples import Samples


class _Column:
    """A linear layer, or a table, of which each rank has some columns."""

    comes: Placement = Replicate()
    goes: Placement = Shard(-1)

    def __init__(self, layer: SplitLayer, mesh: DeviceMesh) -> None:
        self.layer, self.mesh = layer, mesh

    def apply(self, unit: nn.Module) -> None:
        """Split *unit*, whose input and output stay local tensors."""
        made: Any = self._made  # what it gives stands for the output
        distribute_module(unit, self.mesh, self._placed, self._given, made)

    def dims(self, unit: nn.Module) -> Mapping[str, Placement]:
        """How its parameters lie."""
        return {"weight": Shard(sides_of(unit)[0]), "bias": Shard(0)}

    def _placed(self, name: str, unit: nn.Module, mesh: DeviceMesh) -> None:
        for name, one in list(unit.named_parameters(recurse=False)):
            placement, whole = self.dims(unit)[name], one.detach()
            if self.layer.parts and isinstance(placement, Shard):
                order = SideBySide(
                    dim=placement.dim, parts=self.layer.parts, ways=mesh.size()
                )
                whole = order.by_rank(whole)
            made = distribute_tensor(whole, mesh, [placement])
            unit.register_parameter(
                name, nn.Parameter(made, requires_grad=one.requires_grad)
            )

    def _given(self, unit: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        first, *others = inputs
        return (DTensor.from_local(first, mesh, [self.comes], run_check=False), *others)

    def _made(self, unit: nn.Module, output: Any, mesh: DeviceMesh) -> Tensor:
        placed: Tensor = output.redistribute(placements=[self.goes]).to_local()
        return placed


class _Row(_Column):
    """A linear layer of which each rank has some rows."""

    comes: Placement = Shard(-1)
    goes: Placement = Replicate()

    def dims(self, unit: nn.Module) -> Mapping[str, Placement]:
        return {"weight": Shard(sides_of(unit)[1]), "bias": Replicate()}


class WholeStage(nn.Module):
    """The user's module, from numbers of samples to its loss."""

    def __init__(
        self, module: nn.Module, samples: Samples, paths: Sequence[str]
    ) -> None:
        super().__init__()
        self.module, self.samples, self._paths = module, samples, tuple(paths)
        self.side_by_side: dict[str, SideBySide] = {}

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

    def split(self, spec: ModuleSpec, mesh: DeviceMesh) -> None:
        """Split what *spec* says over the tp axis *mesh*."""
        for layer in spec.split:
            unit = self.module.get_submodule(layer.path)
            style = _Column if layer.style == "column" else _Row
            style(layer, mesh).apply(unit)
            if layer.parts:
                held = {
                    f"{layer.path}.{name}": one for name, one in unit.named_parameters()
                }
                self.side_by_side |= {
                    name: SideBySide(
                        dim=sides_of(unit)[0] if one.ndim > 1 else 0,
                        parts=layer.parts,
                        ways=mesh.size(),
                    )
                    for name, one in held.items()
                }
        for path, name in spec.counts:
            one = self.module.get_submodule(path)
            setattr(one, name, getattr(one, name) // mesh.size())

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

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """By the user's names too."""
        held = super().state_dict(*args, **kwargs)
        return {name.removeprefix("module."): one for name, one in held.items()}
