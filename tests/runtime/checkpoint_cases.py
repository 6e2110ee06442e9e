"""A small model in several layouts, and what two ranks do with its checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from runtime.checkpoint.checkpoint import load, save
from runtime.checkpoint.directory import latest
from runtime.checkpoint.state import written
from runtime.optim.optimizer import Optimizer, Settings, local

VOCAB, WIDTH, LAYERS = 10, 6, 3
META: dict[str, Any] = {"job": {"model": "small", "seq_len": 8}}
State = dict[str, Tensor]
LAYOUTS = ("plain", "tp", "fsdp", "replicate", "pipeline")


class Block(nn.Module):
    """A norm and two products; 2 ranks do not divide the 5 inner features."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 5)
        self.down = nn.Linear(5, WIDTH)


class Model(nn.Module):
    """Embedding, layers and head, or those of them that a stage holds."""

    def __init__(self, names: tuple[str, ...], *, tied: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH) if "table" in names else None
        self.layers = nn.ModuleDict(
            {name: Block() for name in names if name.isdecimal()}
        )
        self.head = nn.Linear(WIDTH, VOCAB, bias=False) if "head" in names else None
        self.register_buffer("places", torch.arange(4.0) * 0)
        if tied and self.table is not None and self.head is not None:
            self.head.weight = self.table.weight


@dataclass(slots=True)
class Part:
    """What one rank holds of the model."""

    modules: list[nn.Module]
    optimizer: Optimizer

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        for module in self.modules:
            yield from module.named_parameters()

    def step(self, number: int) -> None:
        """An update by gradients that only depend on the parameter's name."""
        gradients = {
            name: _like(parameter, _random(f"gradient {number} of {_first(name)}"))
            for name, parameter in self.named()
        }
        self.optimizer.step({name: local(one) for name, one in gradients.items()})

    def whole(self) -> dict[str, Tensor]:
        """Parameters and optimizer state of this rank, put together."""
        return {
            name: (value.full_tensor() if isinstance(value, DTensor) else value).clone()
            for name, value in written(self.modules, self.optimizer).items()
        }


def built(layout: str, *, tied: bool = False, seed: int = 0) -> Part:
    """This rank's part of the model, first values by *seed*, in a layout of 2 ranks."""
    every = tuple(str(number) for number in range(LAYERS))
    names: list[tuple[str, ...]] = [("table", *every, "head")]
    if layout == "pipeline":  # rank 0 has both ends, rank 1 what is between
        names = [("table", "0"), ("2", "head")] if dist.get_rank() == 0 else [("1",)]
    modules: list[nn.Module] = [Model(some, tied=tied) for some in names]
    with torch.no_grad():
        for name, one in (item for part in modules for item in part.named_parameters()):
            one.copy_(_random(f"value {seed} of {_first(name)}")(one.shape))
    for module in modules:
        _spread(module, layout)
    named = [item for module in modules for item in module.named_parameters()]
    return Part(modules, Optimizer(named, Settings(lr=0.01)))


def _spread(module: nn.Module, layout: str) -> None:
    if layout in ("plain", "pipeline"):
        return
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("axis",))
    assert isinstance(module, Model)
    if layout == "tp":
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        for layer in module.layers.values():
            parallelize_module(layer, mesh, plan)
    elif layout == "fsdp":
        for layer in module.layers.values():
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
    else:
        replicate(module)


def _first(name: str) -> str:
    return "table.weight" if name == "head.weight" else name


def _random(words: str) -> Any:
    seed = int.from_bytes(hashlib.sha256(words.encode()).digest()[:7])
    generator = torch.Generator().manual_seed(seed)
    return lambda shape: torch.randn(shape, generator=generator)


def _like(parameter: Tensor, random: Any) -> Tensor:
    """The same numbers whatever the layout, sharded as *parameter* is."""
    whole: Tensor = random(parameter.shape)
    if not isinstance(parameter, DTensor):
        return whole
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements)


def saved_by(rank: int, folder: Path, layout: str, options: dict[str, bool]) -> Any:
    """Two steps from the first values, saved; what a third gives."""
    part = built(layout, **options)
    part.step(0)
    part.step(1)
    save(folder, step=2, parts=part.modules, optimizer=part.optimizer, meta=META)
    before = part.whole()
    part.step(2)
    return before, part.whole()


def handed_on(rank: int, folder: Path, options: dict[str, bool]) -> Any:
    """The checkpoint of step 2 in *folder*, read and written by layout after layout.

    Returns, by layout, the state read and what a step makes of it.
    """
    seen = {}
    for number, layout in enumerate((*LAYOUTS, "plain")):
        part = built(layout, seed=7 + number, **options)
        found = load(folder, parts=part.modules, optimizer=part.optimizer, meta=META)
        assert found == 2 + number
        read = part.whole()
        save(
            folder,
            step=3 + number,
            parts=part.modules,
            optimizer=part.optimizer,
            meta=META,
        )
        part.step(2)
        seen[f"{number} {layout}"] = read, part.whole()
    return seen


def resumed_exactly(rank: int, folder: Path, options: dict[str, bool]) -> Any:
    """By layout: the state after four steps, and after two, a resume and two more."""
    pairs = {}
    for layout in LAYOUTS:
        place = folder / layout
        part = built(layout, **options)
        for number in range(4):
            if number == 2:
                parts, optimizer = part.modules, part.optimizer
                save(place, step=2, parts=parts, optimizer=optimizer, meta=META)
            part.step(number)
        again = built(layout, seed=5, **options)
        load(place, parts=again.modules, optimizer=again.optimizer, meta=META)
        again.step(2)
        again.step(3)
        pairs[layout] = part.whole(), again.whole()
    return pairs


def stored(folder: Path, part: Part | None = None, step: int = 1) -> Path:
    """A folder with a checkpoint of *part*, after one step."""
    if part is None:
        part = built("plain")
        part.step(0)
    save(folder, step=step, parts=part.modules, optimizer=part.optimizer, meta=META)
    found = latest(folder)
    assert found is not None
    return found


def restored(folder: Path, part: Part | None = None) -> Part:
    part = part or built("plain", seed=3)
    load(folder, parts=part.modules, optimizer=part.optimizer, meta=META)
    return part


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) for name in one
    )


def close(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[name], other[name], rtol=1e-6, atol=1e-7) for name in one
    )
