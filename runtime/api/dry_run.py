"""One forward of a chain of units against the module's own, before anything trains.

A pipeline hands on one tensor from unit to unit. Whether that is all that the module's
own forward does (no skip to a later unit, nothing beside the units, no state that two
units share) is seen by computing: both forwards run on the first micro-batch, with the
same parameters and the same random numbers, and must give the same output.

Parameters are not the model's own, which are cut and sharded by then, but drawn at
random when they are read and let go of: a dry run needs no memory for them, and what a
first value of 0 hides (a gate, an adapter) shows. Buffers are copies.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from profiles.errors import Unsupported

TOLERANCE: Final = {2: 2e-2, 4: 1e-4}  # of the largest output, by a number's bytes
_Seen = tuple[torch.Size, float]


class Drawn(Tensor):
    """A parameter without storage: its values are drawn whenever they are read, always
    the same ones. Matrices keep the size of what they multiply; vectors are about 1."""

    @staticmethod
    def __new__(cls, like: Tensor, seed: int) -> Drawn:
        made: Drawn = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, dtype=like.dtype, device=like.device
        )
        return made

    def __init__(self, like: Tensor, seed: int) -> None:
        self.seed = seed

    def values(self) -> Tensor:
        source = torch.Generator(self.device).manual_seed(self.seed)
        made = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        if made.ndim < 2:
            return made.uniform_(0.5, 1.5, generator=source)
        # A stack of matrices, as of experts, or a kernel of one dimension.
        fan = max(made.shape[1:]) if made.ndim == 3 else made[0].numel()
        most = math.sqrt(3 / max(fan, 1))
        return made.uniform_(-most, most, generator=source)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given, named = tree_map_only(Drawn, Drawn.values, (args, kwargs or {}))
        return func(*given, **named)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class DryRun:
    """Copies of *module* and of each of its *units* by itself, made before anything is
    done to them; raises Unsupported where they cannot be copied."""

    def __init__(self, module: nn.Module, units: Sequence[nn.Module]) -> None:
        self._name = type(module).__name__
        held = {id(one): one for one in module.parameters()}
        held |= {id(one): one for unit in units for one in unit.parameters()}
        self._drawn = {
            key: Drawn(one, number)
            for number, (key, one) in enumerate(held.items())
            if one.is_floating_point()
        }
        self._whole, made = self._copied(module)
        self._inside = {
            number: made[id(unit)]
            for number, unit in enumerate(units)
            if id(unit) in made
        }
        self._units = [self._copied(unit)[0] for unit in units]

    def shapes(self, inputs: Tensor) -> list[torch.Size]:
        """What each unit makes of *inputs*; raises Unsupported where the chain does
        not compute what the module does."""
        seen: dict[int, list[_Seen]] = {number: [] for number in self._inside}
        with _watching(self._inside, seen), same_numbers(inputs.device):
            own = self._run(self._whole, inputs.clone(), self._name)
        stream, shapes, departs = inputs.clone(), [], ""
        with same_numbers(inputs.device):
            for number, unit in enumerate(self._units):
                departs = departs or _departure(number, unit, seen, stream)
                stream = self._run(unit, stream, _called(number, unit))
                shapes.append(stream.shape)
        if not alike(stream, own):
            raise Unsupported(
                f"the units, one after another, do not compute what {self._name}."
                f"forward does: {departs or 'something follows the last unit'}. A "
                "pipeline hands one tensor from each unit to the next: let units hold "
                "all that the forward does (and carry a skip in that tensor), plan "
                "with --pp 1, or give nn.Sequential(*units) as the module if that is "
                "what is to be trained"
            )
        return shapes

    @staticmethod
    def _run(module: nn.Module, inputs: Tensor, name: str) -> Tensor:
        try:
            with torch.no_grad():
                made = output_of(module(inputs))
        except Exception as error:
            raise Unsupported(
                f"{name} cannot be run by itself on one tensor {tuple(inputs.shape)} "
                f"of {inputs.dtype}: {str(error).splitlines()[0]}"
            ) from error
        if made is None:
            raise Unsupported(f"{name} gives no tensor; each unit takes one, gives one")
        return made

    def _copied(self, module: nn.Module) -> tuple[nn.Module, dict[int, Any]]:
        memo: dict[int, Any] = dict(self._drawn)
        try:
            made = copy.deepcopy(module, memo)
        except (TypeError, RuntimeError) as error:
            raise Unsupported(
                f"a {type(module).__name__} cannot be copied, which comparing its "
                f"units with its forward needs: {str(error).splitlines()[0]}"
            ) from error
        for one in made.modules():
            if any(isinstance(own, Drawn) for own in one._parameters.values()):
                one.register_forward_pre_hook(_fill)
                one.register_forward_hook(_empty)
        return made, memo


def agreed_shapes(trial: DryRun, inputs: Tensor) -> list[torch.Size]:
    """`trial.shapes(inputs)`; every rank calls this at once, and where one refuses all
    of them raise Unsupported."""
    refused: Unsupported | None = None
    found: list[torch.Size] = []
    try:
        found = trial.shapes(inputs)
    except Unsupported as error:
        refused = error
    everywhere = torch.tensor(float(refused is not None), device=inputs.device)
    dist.all_reduce(everywhere)
    if refused is not None:
        raise refused
    if everywhere:
        raise Unsupported("another rank refused to train this chain of units")
    return found


def output_of(made: Any) -> Tensor | None:
    """The tensor that a module's output is: itself, a Hugging Face model's logits, or
    the first of several."""
    if isinstance(made, Mapping):
        made = made.get("logits", next(iter(made.values()), None))
    elif isinstance(made, tuple | list) and made:
        made = made[0]
    return made if isinstance(made, Tensor) else None


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs are the same up to the order of sums; row by row, since of a
    large vocabulary they are large."""
    if one.shape != other.shape or one.dtype != other.dtype or not one.numel():
        return False
    pairs = list(zip(one.unbind(), other.unbind(), strict=True)) if one.ndim else []
    pairs = pairs or [(one, other)]
    most = max(float(_finite(row).abs().max()) for _, row in pairs)
    near = most * TOLERANCE.get(other.element_size(), 1e-4)
    return any(bool(row.isfinite().any()) for _, row in pairs) and all(
        torch.allclose(*pair, rtol=0, atol=near, equal_nan=True) for pair in pairs
    )


def _finite(row: Tensor) -> Tensor:
    return row.nan_to_num(0, 0, 0) if row.is_floating_point() else row


@contextmanager
def same_numbers(device: torch.device) -> Iterator[None]:
    """Random numbers from one beginning, and as they were afterwards."""
    before = random.getstate()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        random.seed(0)
        yield
    random.setstate(before)


@contextmanager
def _watching(
    inside: Mapping[int, nn.Module], seen: dict[int, list[_Seen]]
) -> Iterator[None]:
    """Note what the module's own forward gives each of its units."""

    def note(number: int) -> Any:
        def given(module: nn.Module, args: Any, named: Any) -> None:
            everything = (*args, *named.values())
            first = next((one for one in everything if isinstance(one, Tensor)), None)
            if first is not None:
                seen[number].append(_fingerprint(first))

        return given

    handles = [
        one.register_forward_pre_hook(note(number), with_kwargs=True)
        for number, one in inside.items()
    ]
    yield
    for handle in handles:
        handle.remove()


def _departure(
    number: int, unit: nn.Module, seen: Mapping[int, list[_Seen]], stream: Tensor
) -> str:
    """In words, how the module's forward calls a unit otherwise than the chain."""
    given = seen.get(number)
    if given is None:  # made for the chain, not of the module
        return ""
    if len(given) != 1:
        return f"it calls {_called(number, unit)} {len(given)} times"
    shape, size = _fingerprint(stream)
    if given[0][0] == shape and math.isclose(given[0][1], size, rel_tol=1e-4):
        return ""
    return f"it gives {_called(number, unit)} another tensor than the unit before makes"


def _fingerprint(one: Tensor) -> _Seen:
    """Tells tensors apart by one number, of up to 65,536 of its own."""
    flat = one.detach().flatten()
    flat = flat[:: max(1, flat.numel() // 2**16)].double()
    places = torch.linspace(1, 2, flat.numel(), dtype=flat.dtype, device=flat.device)
    return one.shape, float(flat @ places)


def _called(number: int, unit: nn.Module) -> str:
    return f"unit {number} ({type(unit).__name__})"


def _fill(module: nn.Module, given: Any) -> None:
    """Values for the time of a forward: kernels take them by their address."""
    own: dict[str, Any] = dict(module._parameters)
    module.__dict__["_drawn"] = own
    for name, one in own.items():
        if isinstance(one, Drawn):
            module._parameters[name] = one.values()  # type: ignore[assignment]


def _empty(module: nn.Module, given: Any, made: Any) -> None:
    module._parameters.update(module.__dict__["_drawn"])
