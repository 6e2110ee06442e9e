"""What one micro-batch's pass through a layer saves for backward, tensor by tensor.

While the layer runs, its operators name what they make (`Pass.do`), and autograd's hook
sees what is saved. Afterwards each named tensor is kept, freed to be recomputed by its
operator, offloaded, or compressed. A saved tensor is identified by its storage, as all
named ones are alive until then.

Tensors that backward does not read are freed as well; if one is needed to recompute
another, it is recomputed first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from costmodel.layout import EVERYTHING, Action, Retention, Treatment
from runtime.offload import OnDrive, OnHost, Tiers
from runtime.remat.quantized_activations import Packed, Quantizer, Slot

Values = tuple[Tensor, ...]
Make = Callable[[], Values]


@dataclass(frozen=True, slots=True)
class Away:
    """Where tensors go that are not kept as they are: elsewhere, or in fewer bits."""

    tiers: Tiers
    quantizer: Quantizer


class Geometry:
    """How a tensor lies in its storage."""

    __slots__ = ("offset", "size", "stride")

    def __init__(self, tensor: Tensor) -> None:
        self.size, self.stride = tensor.size(), tensor.stride()
        self.offset = tensor.storage_offset()

    def of(self, flat: Tensor) -> Tensor:
        return flat.as_strided(self.size, self.stride, self.offset)


class Saved:
    """What one operator made in one pass: a tensor, or a few."""

    def __init__(
        self, values: Values, make: Make | None, part_of: Saved | None
    ) -> None:
        self.values = values  # while the layer runs
        self.part_of = part_of  # whose storage this is
        self.needed = False  # by a backward
        self._make = make
        self._shapes = [Geometry(value) for value in values]
        self._flat: list[Tensor] | None = None
        self._stored: list[Stored] = []

    def settle(self, treatment: Treatment | None, away: Away, slot: Slot) -> None:
        """Apply the *treatment* to the values, called *slot*, and free them."""
        values, self.values = self.values, ()
        how = treatment.action if treatment else Action.KEEP
        if self._make is not None and (how is Action.RECOMPUTE or not self.needed):
            return
        flat = [flat_storage(value.detach()) for value in values]
        as_it_is = how in (Action.KEEP, Action.RECOMPUTE) or not self.needed
        if treatment is None or as_it_is:
            self._flat = flat
        else:
            self._stored = [
                _stored(one, row_of(value), treatment, away, (slot, number))
                for number, (one, value) in enumerate(zip(flat, values, strict=True))
            ]
        self._make = None

    def start(self) -> None:
        """Begin to bring back what is offloaded."""
        for one in self._stored:
            one.start()

    def flat(self) -> list[Tensor]:
        """The storages, as 1-D tensors; recomputed if necessary."""
        if self._flat is None and self._stored:
            self._flat = [one.back() for one in self._stored]
        elif self._flat is None:
            assert self._make is not None
            self._flat = [flat_storage(value) for value in self._make()]
            self._make = None
        self._stored = []
        return self._flat

    def get(self) -> Values:
        """The values, in a backward."""
        pairs = zip(self._shapes, self.flat(), strict=True)
        return tuple(shape.of(flat) for shape, flat in pairs)


class Box:
    """What autograd holds in place of a tensor that an operator saved."""

    __slots__ = ("_geometry", "_kept", "_number", "_of", "tensor")

    def __init__(self, tensor: Tensor, of: Pass) -> None:
        self.tensor: Tensor | None = tensor
        self._of = of

    def refer(self, kept: Saved, number: int) -> None:
        """From now on it is value *number* of *kept*."""
        assert self.tensor is not None
        self._geometry = Geometry(self.tensor)
        self._kept, self._number, self.tensor = kept, number, None
        kept.needed = True

    def get(self) -> Tensor:
        if self.tensor is not None:
            return self.tensor
        self._of.began()
        return self._geometry.of(self._kept.flat()[self._number])


class Pass:
    """One micro-batch through layer *number* under *retention*.

    *before* is the pass through the layer before, whose tensors are fetched from the
    host, or the drive, while this one's backward runs.
    """

    def __init__(
        self, retention: Retention, away: Away, before: Pass | None, number: int
    ) -> None:
        self._retention, self._to, self._before = retention, away, before
        self._number = number
        self._named: dict[str, Saved] = {}
        self._boxes: list[Box] = []
        self._away: list[ReferenceType[Saved]] = []

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around the layer's forward."""
        with saved_tensors_hooks(self._boxed, Box.get):
            yield
        self._settle()

    def enter(self, name: str, value: Tensor) -> Saved:
        """What the layer is given."""
        return self._add(name, Saved((value,), None, None))

    def do(
        self,
        name: str,
        function: Callable[..., Tensor | Values],
        *given: Saved,
        part_of: Saved | None = None,
        draws: bool = False,
    ) -> Saved:
        """Carry an operator out; what it makes is called *name*.

        *draws*: it takes random numbers, the same ones when it runs again.
        """
        again = _again(function, given, draws)
        made = function(*(value for one in given for value in one.values))
        return self._add(name, Saved(_tuple(made), again, part_of))

    def source(self, kept: Saved) -> Make:
        """What gives *kept*'s values to something that runs now and again in backward,
        then as inputs that need as many gradients."""
        kept.needed = True
        trained = [value.requires_grad for value in kept.values]

        def given() -> Values:
            if kept.values:
                return kept.values
            self.began()
            pairs = zip(kept.get(), trained, strict=True)
            return tuple(one.detach().requires_grad_(needs) for one, needs in pairs)

        return given

    def began(self) -> None:
        """A backward needs something of this pass."""
        if self._before is not None:
            self._before.fetch()
            self._before = None

    def fetch(self) -> None:
        """Begin to bring back what is offloaded."""
        away, self._away = self._away, []
        for one in away:
            kept = one()
            if kept is not None:
                kept.start()

    def _add(self, name: str, kept: Saved) -> Saved:
        self._named[name] = kept
        return kept

    def _boxed(self, tensor: Tensor) -> Box:
        box = Box(tensor, self)
        self._boxes.append(box)
        return box

    def _settle(self) -> None:
        boxes, self._boxes = self._boxes, []
        named, self._named = self._named, {}
        places: dict[int, tuple[Saved, int]] = {}
        for kept in named.values():
            for number, value in enumerate(kept.values):
                places.setdefault(pointer(value), (kept, number))
        for box in boxes:
            assert box.tensor is not None
            found = places.get(pointer(box.tensor))
            if found is not None:
                box.refer(*found)
        for kept in named.values():
            if kept.needed and kept.part_of is not None:
                kept.part_of.needed = True
                kept.needed = False
        for name, kept in named.items():
            kept.settle(self.treatment(name), self._to, (self._number, name))
        self._away = [ref(kept) for kept in named.values()]
        self._to.tiers.sent()

    def treatment(self, name: str) -> Treatment | None:
        """What is done with the tensor *name*; `*` is any other."""
        tensors = self._retention.tensors
        return tensors.get(name) or tensors.get(EVERYTHING)


class Stored:
    """A flat tensor whose first elements are moved or packed, the others as they are:
    all of them where it has no elements, as of an expert that has no rows."""

    def __init__(
        self, moved: OnHost | OnDrive | Packed | None, rest: Tensor | None
    ) -> None:
        self._moved, self._rest = moved, rest

    def start(self) -> None:
        """Begin to bring it back."""
        if isinstance(self._moved, OnHost | OnDrive):
            self._moved.start()

    def back(self) -> Tensor:
        """All of it, on the device."""
        parts = [] if self._moved is None else [self._moved.back()]
        parts += [] if self._rest is None else [self._rest]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _stored(
    flat: Tensor, row: int, treatment: Treatment, away: Away, slot: Slot
) -> Stored:
    if not flat.numel():
        return Stored(None, flat)
    count = round(treatment.ratio * flat.numel())
    some = flat[:count]
    moved: OnHost | OnDrive | Packed
    if treatment.action is Action.OFFLOAD:
        moved = away.tiers.away(some, treatment.tier)
    else:
        moved = away.quantizer.pack(slot, some, row, treatment)
    return Stored(moved, flat[count:].clone() if count < flat.numel() else None)


def _again(
    function: Callable[..., Tensor | Values], given: Sequence[Saved], draws: bool
) -> Make:
    """Runs *function* once more, in the precision and with the draws of now."""
    computing, drawing = _computing(given), _drawing(given) if draws else None

    def make() -> Values:
        with torch.no_grad(), computing():
            values = [value for one in given for value in one.get()]
            if drawing is None:
                return _tuple(function(*values))
            with drawing():
                return _tuple(function(*values))

    return make


def _computing(given: Sequence[Saved]) -> Callable[[], AbstractContextManager[Any]]:
    kind = given[0].values[0].device.type
    enabled = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled)


def _drawing(given: Sequence[Saved]) -> Callable[[], AbstractContextManager[None]]:
    device = given[0].values[0].device
    own = torch.cuda if device.type == "cuda" else torch.random
    state = own.get_rng_state()

    @contextmanager
    def as_then() -> Iterator[None]:
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            own.set_rng_state(state)
            yield

    return as_then


def row_of(tensor: Tensor) -> int:
    """How many elements a row has as it lies in memory; 0 where it lies otherwise."""
    return tensor.shape[-1] if tensor.dim() and tensor.is_contiguous() else 0


def flat_storage(tensor: Tensor) -> Tensor:
    """All of a tensor's storage."""
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    return tensor.as_strided((count,), (1,), 0)


def pointer(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tuple(made: Tensor | Values) -> Values:
    return made if isinstance(made, tuple) else (made,)
