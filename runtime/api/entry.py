"""A layout for a module of the user's own, in a training loop of the user's own.

    torchrun --standalone --nproc-per-node 4 train.py

    layout = runtime.api.layout_of("layout.json")
    model = runtime.parallelize(model, layout)
    model(batch).backward()      # gradients are averaged over the ranks

Tensor parallelism makes DTensors of linear layers (`placements`), data parallelism and
ZeRO ask nothing of a module; what is offloaded is updated by `optimizer`. A pipeline
cuts a chain of units (`chain`) and trains by `model.step(inputs, targets)`
(`pipelined`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from costmodel.layout import Layout
from costmodel.simulation import parse_file
from profiles.errors import Contradiction
from profiles.files import read_json
from runtime.api.data_parallel import replicated
from runtime.api.dry_run import DryRun
from runtime.api.module_chain import chain_of
from runtime.api.optimizers import Update, device_of
from runtime.api.pipelined import Loss, Pipelined
from runtime.api.supported import (
    fsdp_level,
    recomputed_layers,
    require_executable,
    state_offload,
)
from runtime.api.tensor_parallel_plan import Styles, place
from runtime.models import Policy, policy
from runtime.optim import (
    Make,
    Piece,
    clip_factor,
    global_norm,
    local,
    made_of,
    parts,
    scale,
)
from runtime.parallel import device_mesh, rank_grid, shard_mesh


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
    require_executable(layout)
    require_ranks(layout)
    device = next(module.parameters()).device
    broadcast_from_first(module)
    whole = device_mesh(layout, device.type)
    chain = chain_of(module, units) if layout.pp > 1 else []
    members = chain or _members(module, units)
    require_trained(module, layout)
    require_layers(module, members, layout)
    trial = DryRun(module, chain) if chain else None  # of them as they are
    place(module, whole["tp"], styles or {})
    for unit in _redone(members, recomputed_layers(layout)):
        _redo(unit)
    rules = policy(layout.precision_name)
    rules.multiply()
    if trial is not None:
        if loss is None:
            raise Contradiction("a pipeline needs loss=, of output and targets")
        return Pipelined(chain, layout, whole, loss, rules, trial=trial)
    if rules.autocast is not None:
        _cast(module, rules, device.type)
    shards = shard_mesh(layout, whole)
    return replicated(module, members, whole, shards, layout, rules)


def require_ranks(layout: Layout) -> None:
    """Raise Contradiction unless the process group has the ranks of *layout*."""
    if not dist.is_initialized():
        raise Contradiction(
            f"there is no process group: start {layout.gpus} processes (torchrun "
            f"--nproc-per-node {layout.gpus}) and call "
            "torch.distributed.init_process_group before parallelize"
        )
    if dist.get_world_size() != layout.gpus:
        raise Contradiction(
            f"the layout is of {layout.gpus} ranks and the process group has "
            f"{dist.get_world_size()}; start {layout.gpus}, or plan with --gpus "
            f"{dist.get_world_size()}"
        )


def require_trained(module: nn.Module, layout: Layout) -> None:
    """Raise Contradiction unless *module* has parameters to train, in 32 bits: it is
    these that a layout's 16-bit weights are made from."""
    named = dict(module.named_parameters())
    if not any(one.requires_grad for one in named.values()):
        raise Contradiction(
            f"no parameter of {type(module).__name__} is trained: all have "
            "requires_grad=False"
        )
    together = layout.pp > 1 or fsdp_level(layout) > 0  # with those that are frozen
    for name, one in named.items():
        narrow = one.is_floating_point() and one.dtype is not torch.float32
        if narrow and (one.requires_grad or together):
            raise Contradiction(
                f"{name} is {str(one.dtype).removeprefix('torch.')}: precision "
                f"{layout.precision_name} starts from 32-bit weights and casts them "
                "itself; call module.float() before parallelize"
            )


def require_layers(
    module: nn.Module, members: Sequence[nn.Module], layout: Layout
) -> None:
    """Raise Contradiction where *members* are not the layers of *layout*, with up to
    three beside (embedding, norm, head)."""
    layers = len(recomputed_layers(layout))
    if members and not 0 <= len(members) - layers <= 3:
        raise Contradiction(
            f"the layout is of {layers} layers and {type(module).__name__} has "
            f"{len(members)} units; plan for as many layers, or give units=, one a "
            "layer"
        )


def data_rank(layout: Layout) -> int:
    """Which of the data-parallel parts of a batch this rank reads, from 0."""
    rank = dist.get_rank()
    rows = (row for stage in rank_grid(layout) for row in enumerate(stage))
    return next(number for number, ranks in rows if rank in ranks)


@torch.no_grad()
def broadcast_from_first(module: nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, as `DistributedDataParallel`
    does: modules made from unlike seeds would never agree."""
    for one in (*module.parameters(), *module.buffers()):
        if one.is_meta or isinstance(one, DTensor):
            continue
        whole = one.detach().contiguous()
        dist.broadcast(whole, src=0)
        if not one.is_contiguous():
            one.copy_(whole)


def optimizer(
    model: nn.Module, layout: Layout, make: Make, folder: Path | None = None
) -> torch.optim.Optimizer | Update:
    """*make*'s optimizer of the parameters of *model*, updating where *layout* says.

    On the device, or where an offloaded optimizer's shards are in the host's memory,
    that is `make(list(model.parameters()))`; else an `Update`, of copies there. With
    states on a drive they are in a file of *folder* (None: of the folder of temporary
    files), of AdamW, Adam or SGD.
    """
    away = state_offload(layout)
    if away.on_drive or away.masters:
        return Update(model, layout, make, folder)
    return made_of(make, list(model.parameters()))


def clip_gradients(
    module: nn.Module,
    layout: Layout,
    most: float,
    *,
    updated: torch.optim.Optimizer | Update | None = None,
) -> Tensor:
    """Scale the gradients so that the whole model's norm is at most *most*.

    Every rank calls this at once, between backward and the update; the norm, before it
    was scaled, is over all ranks, each parameter counted once. *updated* is the
    optimizer, which has the gradients where they have gone to the host.
    """
    if isinstance(updated, Update):
        turns = (_pieces(one, layout) for one in updated.turns())
        norm = global_norm(turns, device=updated.gradients_on)
        updated.factor = clip_factor(float(norm), most)
        return norm
    made = [
        (one, local(one.grad)) for one in module.parameters() if one.grad is not None
    ]
    norm = global_norm([_pieces(made, layout)], device=device_of(module))
    scale([gradient for _, gradient in made], clip_factor(float(norm), most))
    return norm


def _pieces(made: Iterable[tuple[Tensor, Tensor]], layout: Layout) -> list[Piece]:
    """Gradients of parameters, each with the ranks that hold the same."""
    ranks = layout.stages[0].mesh.dp * layout.stages[0].mesh.tp
    return [Piece(gradient, ranks // parts(one)) for one, gradient in made]


def _redone(members: list[nn.Module], again: list[bool]) -> Iterator[nn.Module]:
    """Of *members*, the layers that *again* says are run again in backward.

    Raises Contradiction where only some are and it cannot be told which.
    """
    if not any(again):
        return
    beside = len(members) - len(again)  # embedding and head, perhaps the norm
    if beside in (0, 2, 3):
        layers = members[bool(beside) :]
        yield from (one for one, redo in zip(layers, again, strict=False) if redo)
    elif all(again):
        yield from members
    else:
        raise Contradiction(
            f"the layout recomputes {sum(again)} of {len(again)} layers, and the "
            f"module has {len(members)} units; give units=, one per layer, or use "
            "recompute full in all layers"
        )


def repeated(module: nn.Module) -> Iterable[nn.Module]:
    """The layers of *module*: what its outermost lists and dictionaries hold."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from child.children()
        else:
            yield from repeated(child)


def _members(module: nn.Module, units: Iterable[nn.Module] | None) -> list[nn.Module]:
    if units is not None:
        return list(units)
    return list(module if isinstance(module, nn.Sequential) else repeated(module))


def _redo(unit: nn.Module) -> None:
    """Recompute *unit* in backward; its parameters keep their names."""
    inside = unit.forward

    def again(*arguments: Any, **named: Any) -> Any:
        return checkpoint(inside, *arguments, use_reentrant=False, **named)

    unit.forward = again


def _cast(module: nn.Module, rules: Policy, device_type: str) -> None:
    """Let *module* compute by autocast; what it gives is in 32 bits, for the loss."""
    inside = module.forward

    def cast(*arguments: Any, **named: Any) -> Any:
        with rules.computing(device_type):
            made = inside(*arguments, **named)
        return tree_map_only(Tensor, _in_32_bits, made)

    module.forward = cast


def _in_32_bits(made: Tensor) -> Tensor:
    return made.float() if made.is_floating_point() else made
