"""A module of the user's own as a chain of units: unit n takes what unit n − 1 gives.

That is what a pipeline can cut: the embedding, the layers in their order, what comes
after them (norm, head). An `nn.Sequential` is one; of another module the units are
named by whoever wrote it, or found, for Hugging Face's decoders. Whether the units are
all that the module's own forward does is tried before the first step (`dry_run`).

Hugging Face's causal language models as chains, found by what their forward does.

One forward of two tokens tells which modules are called before the layers (embeddings),
which layers there are, and what is called after them (norm, head). Each unit then runs
the model's *own* forward with stand-ins in the place of what other units hold, so that
whatever it computes between them (positions, masks, rotary angles, scales of embeddings
and logits) is computed as it says: no family is known by name.

Attention is causal by itself: sequences are whole, without padding or a mask.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from costmodel.layout import Layout
from profiles.errors import Contradiction, Unsupported
from runtime.api.dry_run import output_of, same_numbers

_PLAIN = (str, int, float, bool, type(None))


def takes_embeddings(module: nn.Module) -> bool:
    """Whether *module* has the face of a Hugging Face language model."""
    named = inspect.signature(module.forward).parameters
    return hasattr(module, "get_input_embeddings") and "inputs_embeds" in named


def units_of(model: nn.Module) -> list[nn.Module]:
    """The units of a decoder; raises Unsupported where it has no chain of layers."""
    layers = _layers(model)
    before, after, pairs = _order_of(model, layers)
    between = Surroundings(model, layers, [*before, *after], pairs)
    return [
        Beginning(model, layers, kept=before, left_out=after, pairs=pairs),
        *(Block(layer, number, between) for number, layer in enumerate(layers)),
        End(model, layers, kept=after, left_out=before, pairs=pairs),
    ]


class StandIn(nn.Module):
    """In a layer's place: notes what it is given, and gives that on, or *instead*."""

    def __init__(self, layer: nn.Module, pair: bool) -> None:
        super().__init__()
        for name, value in vars(layer).items():
            if isinstance(value, _PLAIN) and name not in vars(self):
                setattr(self, name, value)  # as `attention_type`, which is read
        self.pair = pair
        self.instead: Tensor | None = None
        self.given: tuple[tuple[Any, ...], dict[str, Any]] = (), {}

    def forward(self, *given: Any, **named: Any) -> Any:
        self.given = given, named
        made = given[0] if self.instead is None else self.instead
        return (made,) if self.pair else made

    def taken(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What it was given, once: it holds no tensor after that."""
        given, self.given, self.instead = self.given, ((), {}), None
        return given


class PassOn(nn.Module):
    """In the place of an embedding or a norm that another unit holds: hidden states
    pass, and an embedding of anything else adds nothing to them."""

    def forward(self, given: Tensor, *others: Any, **named: Any) -> Tensor:
        return given if given.ndim > 2 else given.new_zeros((), dtype=torch.float32)


class _Shell(nn.Module):
    """The model's own forward, without what other units hold."""

    stands: list[StandIn]

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[nn.Module],
        *,
        kept: Sequence[nn.Module],
        left_out: Sequence[nn.Module],
        pairs: bool,
    ) -> None:
        super().__init__()
        stands = [StandIn(layer, pairs) for layer in layers]
        memo: dict[int, Any] = {id(one): one for one in kept}
        memo |= {id(one): PassOn() for one in left_out}
        memo |= {id(a): b for a, b in zip(layers, stands, strict=True)}
        self.model: Any = copy.deepcopy(model, memo)
        self.__dict__["stands"] = stands  # they are in the model


class Beginning(_Shell):
    """Tokens → what the first layer takes."""

    def forward(self, tokens: Tensor) -> Tensor:
        self.model(input_ids=tokens, use_cache=False)
        (first, *_), _ = [stand.taken() for stand in self.stands][0]  # noqa: RUF015
        return first  # type: ignore[no-any-return]


class End(_Shell):
    """What the last layer gives → logits."""

    def forward(self, stream: Tensor) -> Tensor:
        self.stands[0].instead = stream
        made = output_of(self.model(inputs_embeds=stream, use_cache=False))
        for stand in self.stands:
            stand.taken()
        assert made is not None, "a causal language model gives logits"
        return made


class Surroundings:
    """What else layers are given, beside the stream: computed once for a shape."""

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[nn.Module],
        others: Sequence[nn.Module],
        pairs: bool,
    ) -> None:
        self._shell = _Shell(model, layers, kept=(), left_out=others, pairs=pairs)
        self._key: Any = None
        self._given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def of(self, number: int, stream: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of layer *number*, after the first."""
        key = stream.shape, stream.dtype, stream.device
        if key != self._key:
            with torch.no_grad(), same_numbers(stream.device):
                self._shell.model(inputs_embeds=stream.detach(), use_cache=False)
            taken = [stand.taken() for stand in self._shell.stands]
            self._given = [(given[1:], named) for given, named in taken]
            self._key = key
        return self._given[number]


class Block(nn.Module):
    """A layer, from hidden states to hidden states."""

    def __init__(self, layer: nn.Module, number: int, between: Surroundings) -> None:
        super().__init__()
        self.layer, self.number, self.between = layer, number, between

    def forward(self, stream: Tensor) -> Tensor:
        given, named = self.between.of(self.number, stream)
        made = output_of(self.layer(stream, *given, **named))
        assert made is not None, "a layer gives hidden states"
        return made


def _layers(model: nn.Module) -> list[nn.Module]:
    """The members of the list that holds most of the parameters."""
    lists = [one for one in model.modules() if isinstance(one, nn.ModuleList)]
    if not lists:
        raise Unsupported(_refusal(model, "has no list of layers"))
    sizes = [sum(one.numel() for one in some.parameters()) for some in lists]
    return list(lists[sizes.index(max(sizes))])


def _order_of(
    model: nn.Module, layers: Sequence[nn.Module]
) -> tuple[list[nn.Module], list[nn.Module], bool]:
    """What has parameters (or draws) and is called before the layers, and after them;
    and whether a layer gives a tuple."""
    called: list[nn.Module] = []
    tuples: list[bool] = []
    numbers = {id(layer): number for number, layer in enumerate(layers)}
    ends = list(_ends(model, layers))

    def note(one: nn.Module, given: Any) -> None:
        called.append(one)

    def note_made(one: nn.Module, given: Any, made: Any) -> None:
        tuples.append(isinstance(made, tuple))

    handles = [one.register_forward_pre_hook(note) for one in (*ends, *layers)]
    handles += [one.register_forward_hook(note_made) for one in layers]
    device = next(model.parameters()).device
    tokens = torch.ones((1, 2), dtype=torch.int64, device=device)
    try:
        with torch.no_grad(), same_numbers(device):
            model(input_ids=tokens, use_cache=False)
    except Exception as error:
        reason = f"cannot be run on two tokens ({str(error).splitlines()[0]})"
        raise Unsupported(_refusal(model, reason)) from error
    finally:
        for handle in handles:
            handle.remove()
    order = [numbers[id(one)] for one in called if id(one) in numbers]
    if order != list(range(len(layers))):
        raise Unsupported(
            _refusal(model, "does not call its layers in turn, once each")
        )
    first, last = called.index(layers[0]), called.index(layers[-1])
    return called[:first], called[last + 1 :], any(tuples)


def _ends(model: nn.Module, layers: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """The outermost modules with parameters, or that draw, and without layers."""
    of_layers = {id(one) for layer in layers for one in layer.modules()}
    for child in model.children():
        if any(id(one) in of_layers for one in child.modules()):
            yield from _ends(child, layers)
        elif any(True for _ in child.parameters()) or isinstance(child, nn.Dropout):
            yield child


def _refusal(model: nn.Module, reason: str) -> str:
    return (
        f"a {type(model).__name__} {reason}, so a pipeline cannot cut it by itself: "
        "give its units in order, parallelize(module, layout, units=[embedding, "
        "*layers, head]), or plan with --pp 1"
    )


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
            f"no unit holds {', '.join(names[:4])}; give units that cover the module"
        )
    if len(held) != len(set(held)):
        raise Unsupported(
            "two units share a parameter (tied embeddings): a pipeline would train "
            "the copies separately; untie them (of Hugging Face's models by "
            "tie_word_embeddings=False), or plan with --pp 1"
        )
