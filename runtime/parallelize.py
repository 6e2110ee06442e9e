"""A layout for a module of the user's own, in a training loop of the user's own.

    torchrun --standalone --nproc-per-node 4 train.py

    layout = runtime.parallelize.layout_of("layout.json")
    model = runtime.parallelize(model, layout)
    model(batch).backward()      # gradients are averaged over the ranks

Data parallelism and ZeRO ask nothing of a module. What cuts the module itself (tensor
and pipeline parallelism) knows the catalogue's decoders: `execute` trains those.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from costmodel.layout import Layout
from costmodel.layout_reader import parse_file
from costmodel.retention import EVERYTHING
from profiles.documents import read_json
from profiles.errors import Unsupported
from runtime.mesh import device_mesh
from runtime.precision import policy


def layout_of(path: Path | str) -> Layout:
    """The layout in a file that `plan` wrote; raises InvalidFile."""
    return parse_file(read_json(path, what="layout file")).layout


def parallelize(
    module: nn.Module, layout: Layout, *, units: Iterable[nn.Module] | None = None
) -> nn.Module:
    """*module*, trained over the ranks of *layout*; every rank calls this at once.

    The process group is there already (torchrun, `init_process_group`). *units* are
    what ZeRO gathers, and full recompute redoes, at a time: by default the members of
    the module's ModuleLists and ModuleDicts. Gradients are means over the ranks, as
    with `DistributedDataParallel` (ZeRO-0) and `fully_shard` (ZeRO-1 to 3; several
    backwards a step go under `no_sync` or `set_requires_gradient_sync`).

    Raises Unsupported for layouts that cut the module itself.
    """
    require_whole(layout)
    device = next(module.parameters()).device
    mesh = device_mesh(layout, device.type)["dp"]
    plan = layout.stages[0].plans
    members = list(units) if units is not None else list(repeated(module))
    if any(EVERYTHING in one.retention.recomputed for one in plan):
        for unit in members:
            _redo(unit)
    rules, zero = policy(layout.precision_name), plan[0].zero
    if mesh.size() == 1 and not rules.master:
        return module
    if zero == 0 and not rules.master:
        return DistributedDataParallel(module, process_group=mesh.get_group())
    for unit in (*members, module):
        fully_shard(
            unit,
            mesh=mesh,
            mp_policy=rules.fully_shard,
            reshard_after_forward=zero == 3,
        )
    assert isinstance(module, FSDPModule)
    return module


def require_whole(layout: Layout) -> None:
    """Raise Unsupported unless every rank of *layout* has the whole module."""
    mesh = layout.stages[0].mesh
    cut = {"pp": len(layout.stages), "tp": mesh.tp, "cp": mesh.cp, "ep": mesh.ep}
    found = [f"{name} {degree}" for name, degree in cut.items() if degree > 1]
    if found:
        raise Unsupported(
            f"a layout with {', '.join(found)} cuts the module itself, which needs a "
            "model of the catalogue: train it with `execute`, or plan with --tp 1 "
            "--pp 1 --cp 1"
        )


def repeated(module: nn.Module) -> Iterable[nn.Module]:
    """The layers of *module*: what its outermost lists and dictionaries hold."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from child.children()
        else:
            yield from repeated(child)


def _redo(unit: nn.Module) -> None:
    """Recompute *unit* in backward; its parameters keep their names."""
    inside = unit.forward

    def again(*arguments: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint(inside, *arguments, use_reentrant=False)
        return made

    unit.forward = again
