"""A module of the user's own as a chain of units: unit n takes what unit n − 1 gives.

That is what a pipeline can cut: the embedding, the layers in their order, what comes
after them (norm, head). An `nn.Sequential` is one; of another module the units are
named by whoever wrote it, or found, for Hugging Face's decoders. Whether the units are
all that the module's own forward does is tried before the first step (`dry_run`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from costmodel.layout import Layout
from profiles.errors import Contradiction, Unsupported
from runtime.hugging_face import takes_embeddings, units_of


def chain_of(module: nn.Module, units: Iterable[nn.Module] | None) -> list[nn.Module]:
    """The units of *module*; raises Unsupported where they are not known."""
    if units is not None:
        found = list(units)
    elif isinstance(module, nn.Sequential):
        found = list(module)
    elif takes_embeddings(module):
        found = units_of(module)
    else:
        raise Unsupported(
            f"a {type(module).__name__} is not known to be a chain, so a pipeline "
            "cannot cut it: give its units in order, parallelize(module, layout, "
            "units=[embedding, *layers, head]), or plan with --pp 1"
        )
    _require_all(module, found)
    return found


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
            "its copies apart; untie them (of Hugging Face's models by "
            "tie_word_embeddings=False), or plan with --pp 1"
        )
