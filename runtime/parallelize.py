"""A layout for a module of the user's own, in a training loop of the user's own.

    torchrun --standalone --nproc-per-node 4 train.py

    layout = runtime.parallelize.layout_of("layout.json")
    model = runtime.parallelize(model, layout)
    model(batch).backward()      # gradients are averaged over the ranks

Tensor parallelism makes DTensors of linear layers (`placements`), data parallelism and
ZeRO ask nothing of a module. A pipeline cuts a chain of units (`chain`) and trains by
`model.step(inputs, targets)` (`pipelined`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from costmodel.layout import Layout
from costmodel.layout_reader import parse_file
from costmodel.retention import EVERYTHING
from profiles.documents import read_json
from profiles.errors import Contradiction, Unsupported
from runtime.chain import chain_of, without_storage
from runtime.clip import Piece, clip, global_norm, parts
from runtime.mesh import device_mesh, shard_mesh
from runtime.optimizer import local
from runtime.pipelined import Loss, Pipelined
from runtime.placements import Styles, place
from runtime.precision import Policy, policy


def layout_of(path: Path | str) -> Layout:
    """The layout in a file that `plan` wrote; raises InvalidFile."""
    return parse_file(read_json(path, what="layout file")).layout


def parallelize(
    module: nn.Module,
    layout: Layout,
    *,
    units: Iterable[nn.Module] | None = None,
    styles: Styles | None = None,
    loss: Loss | None = None,
) -> nn.Module:
    """*module*, trained over the ranks of *layout*; every rank calls this at once.

    The process group is there already (torchrun, `init_process_group`). *units* are
    what ZeRO gathers, full recompute redoes, and a pipeline cuts between: by default
    the members of the module's ModuleLists and ModuleDicts; for a pipeline all of the
    module in order (`chain.chain_of`), and *loss*, of output and targets, is needed.
    *styles* say which linear layers are split how over tp, by patterns of their names.

    Without a pipeline gradients are means over the ranks, as with
    `DistributedDataParallel` (ZeRO-0) and `fully_shard` (ZeRO-1 to 3; several
    backwards a step go under `no_sync` or `set_requires_gradient_sync`). With one the
    module comes back as a `Pipelined`.

    Raises Unsupported for layouts or modules that are not carried out.
    """
    require_carried_out(layout)
    device = next(module.parameters()).device
    whole = device_mesh(layout, device.type)
    chain = chain_of(module, units) if layout.pp > 1 else []
    bare = without_storage(chain)  # as they are, before anything is done to them
    members = chain or (list(units) if units is not None else list(repeated(module)))
    place(module, whole["tp"], styles or {})
    plan = layout.stages[0].plans
    if any(EVERYTHING in one.retention.recomputed for one in plan):
        for unit in members[1:-1] if chain else members:
            _redo(unit)
    rules = policy(layout.precision_name)
    if chain:
        if loss is None:
            raise Contradiction("a pipeline needs loss=, of output and targets")
        return Pipelined(chain, layout, whole, loss, rules, bare=bare)
    shards = shard_mesh(layout, whole)
    return _replicated(module, members, whole, shards, plan[0].zero, rules)


def clip_gradients(module: nn.Module, layout: Layout, most: float) -> Tensor:
    """Scale the gradients so that the whole model's norm is at most *most*.

    Every rank calls this at once, between backward and the update; the norm, before it
    was scaled, is over all ranks, each parameter counted once.
    """
    mesh = layout.stages[0].mesh
    trained = [one for one in module.parameters() if one.grad is not None]
    gradients = [local(one.grad) for one in trained if one.grad is not None]
    norm = global_norm(
        Piece(gradient, mesh.dp * mesh.tp // parts(one))
        for gradient, one in zip(gradients, trained, strict=True)
    )
    clip(gradients, norm, most)
    return norm


def require_carried_out(layout: Layout) -> None:
    """Raise Unsupported for what no module of one's own is trained with."""
    if any(plan.modules for stage in layout.stages for plan in stage.plans):
        raise Unsupported(
            "a layout whose operators have shardings of their own is of the "
            "catalogue's layers: train it with `execute`, or leave the modules of its "
            "plans out and give styles"
        )
    mesh = layout.stages[0].mesh
    cut = {"cp": mesh.cp, "ep": mesh.ep}
    found = [f"{name} {degree}" for name, degree in cut.items() if degree > 1]
    if found:
        raise Unsupported(
            f"a layout with {', '.join(found)} changes what a module computes, which "
            "needs a model of the catalogue: train it with `execute`, or plan with "
            "--cp 1 --ep 1"
        )
    if layout.offload.states:
        raise Unsupported(
            f"a layout that offloads {layout.offload} updates on the host, and here "
            "the update is the loop's own: train it with `execute`, or plan without "
            "--offload"
        )


def _replicated(
    module: nn.Module,
    members: list[nn.Module],
    whole: DeviceMesh,
    shards: DeviceMesh,
    zero: int,
    rules: Policy,
) -> nn.Module:
    """*module* over the dp axis, which ZeRO cuts as *shards*."""
    mesh = whole["dp"]
    if mesh.size() == 1 and not rules.master:
        return module
    if zero == 0 and not rules.master:
        if whole["tp"].size() > 1:  # PyTorch's DDP does not hold DTensors
            replicate(module, mesh=mesh)
            return module
        return DistributedDataParallel(module, process_group=mesh.get_group())
    for unit in (*members, module):
        fully_shard(
            unit,
            mesh=shards,
            mp_policy=rules.fully_shard,
            reshard_after_forward=zero == 3,
        )
    assert isinstance(module, FSDPModule)
    return module


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
