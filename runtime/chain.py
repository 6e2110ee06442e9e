"""A module of the user's own as a chain of units: unit n takes what unit n − 1 gives.

That is what a pipeline can cut: the embedding, the layers in their order, what comes
after them (norm, head). An `nn.Sequential` is one; of another module the units are
named by whoever wrote it, or known, for Hugging Face's GPT-2 and Llama.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from costmodel.layout import Layout
from profiles.errors import Contradiction, Unsupported


def chain_of(module: nn.Module, units: Iterable[nn.Module] | None) -> list[nn.Module]:
    """The units of *module*; raises Unsupported where they are not known."""
    if units is not None:
        found = list(units)
        _require_all(module, found)
        return found
    if isinstance(module, nn.Sequential):
        return list(module)
    if type(module).__module__.startswith("transformers."):
        from runtime.hugging_face import units_of

        return units_of(module)
    raise Unsupported(
        f"a {type(module).__name__} is not known to be a chain, so a pipeline cannot "
        "cut it: give its units in order, parallelize(module, layout, "
        "units=[embedding, *layers, head]), or plan with --pp 1"
    )


def cut(units: Sequence[nn.Module], layout: Layout) -> list[list[int]]:
    """Which units each stage of *layout* has, by place.

    The plan's numbered layers are units; before them is one, the embedding, and after
    them one or two, the norm and the head. Raises Contradiction for another count.
    """
    names = [name for stage in layout.stages for name in stage.layers]
    layers = sum(name.isdigit() for name in names)
    ends = len(names) - layers - 1  # after the layers, beside the embedding
    if len(units) not in {layers + 2, layers + 1 + ends}:
        raise Contradiction(
            f"the layout is of {layers} layers between an embedding and a head, the "
            f"module has {len(units)} units; give {layers + 2}: what comes before the "
            "layers, each layer, and what comes after them"
        )
    place = {name: min(number, len(units) - 1) for number, name in enumerate(names)}
    return [
        list(dict.fromkeys(place[name] for name in stage.layers))
        for stage in layout.stages
    ]


def without_storage(units: Sequence[nn.Module]) -> list[nn.Module]:
    """Copies of *units* on the meta device: they give shapes, and take no memory."""
    found = []
    for unit in units:
        held = (*unit.parameters(), *unit.buffers())
        memo: dict[int, Any] = {id(one): _on_meta(one) for one in held}
        found.append(copy.deepcopy(unit, memo))
    return found


def shapes(units: Sequence[nn.Module], inputs: Tensor) -> list[torch.Size]:
    """What each unit, on the meta device, makes of *inputs*."""
    found = []
    stream = inputs.to("meta")
    with torch.no_grad():
        for unit in units:
            stream = unit(stream)
            if not isinstance(stream, Tensor):
                raise Unsupported(
                    f"a {type(unit).__name__} gives {type(stream).__name__}; each unit "
                    "takes one tensor and gives one"
                )
            found.append(stream.shape)
    return found


def _on_meta(one: Tensor) -> Tensor:
    empty = one.detach().to("meta")
    if isinstance(one, nn.Parameter):
        return nn.Parameter(empty, requires_grad=one.requires_grad)
    return empty


def _require_all(module: nn.Module, units: Sequence[nn.Module]) -> None:
    """Every parameter is in one unit: what is in none would never be trained."""
    held = [id(one) for unit in units for one in unit.parameters()]
    names = [name for name, one in module.named_parameters() if id(one) not in held]
    if names:
        raise Contradiction(
            f"no unit holds {', '.join(names[:4])}; the units are all of the module"
        )
    if len(held) != len(set(held)):
        raise Unsupported(
            "two units share a parameter (tied embeddings): a pipeline would train "
            "its copies apart; untie them, or plan with --pp 1"
        )
