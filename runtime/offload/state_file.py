"""`StateFile`: this rank's optimizer states in a file, bucket by bucket.

A bucket holds some parameters' values, after them their moments, and where gradients
wait in the file too a place for those. While one is updated the next is read ahead and
the one before is written back: three buckets are in memory at once, whatever the
model's size (the buffers of ZeRO-Infinity: Rajbhandari et al., SC 2021, section 5.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from profiles.system import BUCKET_BYTES, PAGE_BYTES, DriveFile, Part, whole_pages

FP32_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Bucket:
    """Members by number, and the parts of the file that have their values, their values
    and moments, and behind those their gradients (nothing, where they wait elsewhere).
    """

    members: tuple[int, ...]
    values: Part
    states: Part
    gradients: Part

    @property
    def whole(self) -> Part:
        """All that an update reads."""
        both = self.states.size_bytes + self.gradients.size_bytes
        return Part(self.states.first, both)


class StateFile(DriveFile):
    """For each of *shapes*, in order, a value and *moments* more tensors of fp32, zeros
    at first; with *gradients* one more, beside which nobody asks for them."""

    def __init__(
        self,
        folder: Path,
        shapes: Sequence[torch.Size],
        moments: int,
        *,
        gradients: bool = False,
    ) -> None:
        sizes = [prod(shape) * FP32_BYTES for shape in shapes]
        self.buckets = list(_buckets(sizes, 1 + moments, gradients=gradients))
        end = self.buckets[-1].whole if self.buckets else Part(0, 0)
        # A stage that is frozen has no state, and a file has at least a page.
        super().__init__(folder, max(end.first + end.size_bytes, PAGE_BYTES))
        self._waiting = gradients
        self._tensors: dict[int, list[Tensor]] = {}
        self._slots: dict[int, Tensor] = {}
        self._values: dict[int, Part] = {}  # where each is, to the byte
        self._gradients: dict[int, Part] = {}
        for bucket in self.buckets:
            self._place(bucket, shapes, moments)

    def states(self, member: int) -> list[Tensor]:
        """A member's value and moments; what is written to them is in the file."""
        return self._tensors[member]

    def gradient(self, member: int) -> Tensor:
        """The place of a member's gradient, of a file that has some."""
        return self._slots[member]

    def put_gradient(self, member: int, made: Tensor) -> None:
        """*made*, whatever the place held before."""
        if made.numel():
            data = made.to(torch.float32).reshape(-1).numpy()
            self.write(self._gradients[member].first, data)

    def value_parts(self, members: Iterable[int]) -> Iterator[Part]:
        """Whole pages that have the values of *members*, neighbours in one part."""
        return _whole_parts(self._values, members)

    def gradient_parts(self, members: Iterable[int]) -> Iterator[Part]:
        """The same of their gradients."""
        return _whole_parts(self._gradients, members)

    def _place(self, bucket: Bucket, shapes: Sequence[torch.Size], kinds: int) -> None:
        offset, values = 0, bucket.values
        for member in bucket.members:
            shape = shapes[member]
            size = prod(shape) * FP32_BYTES
            value, slot = values.first + offset, bucket.gradients.first + offset
            moment = values.first + values.size_bytes + offset * kinds
            places = (value, *(moment + kind * size for kind in range(kinds)))
            self._tensors[member] = [self._at(one, shape) for one in places]
            self._values[member] = Part(value, size)
            if self._waiting:
                self._gradients[member] = Part(slot, size)
                self._slots[member] = self._at(slot, shape)
            offset += size

    def _at(self, place: int, shape: torch.Size) -> Tensor:
        if not prod(shape):
            return torch.zeros(shape)
        flat = torch.frombuffer(
            self.map, dtype=torch.float32, count=prod(shape), offset=place
        )
        return flat.view(shape)


def _whole_parts(places: Mapping[int, Part], members: Iterable[int]) -> Iterator[Part]:
    first = end = 0
    for place in (places[one] for one in sorted(members)):
        begins = place.first // PAGE_BYTES * PAGE_BYTES
        if begins > end and end:
            yield Part(first, end - first)
            end = 0
        first = begins if not end else first
        end = begins + whole_pages(place.first + place.size_bytes - begins)
    if end:
        yield Part(first, end - first)


def _buckets(sizes: Sequence[int], kinds: int, *, gradients: bool) -> Iterator[Bucket]:
    """Neighbours together, as many as a bucket takes, and at least one; a page belongs
    to one bucket, and to its values, its moments or its gradients."""
    first = 0
    for members in _neighbours(sizes, BUCKET_BYTES // (kinds + gradients)):
        value_bytes = sum(sizes[member] for member in members)
        values = Part(first, whole_pages(value_bytes))
        moments = whole_pages((kinds - 1) * value_bytes)
        states = Part(first, values.size_bytes + moments)
        first += states.size_bytes
        waiting = Part(first, values.size_bytes if gradients else 0)
        yield Bucket(members, values, states, waiting)
        first += waiting.size_bytes


def _neighbours(sizes: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    members: list[int] = []
    held = 0
    for number, size in enumerate(sizes):
        if members and held + size > most:
            yield tuple(members)
            members, held = [], 0
        members.append(number)
        held += size
    if members:
        yield tuple(members)


ROOT = 0  # the stage itself, whose own parameters are gathered around all others


class ShardReads:
    """`fully_shard`'s shards come from the drive before they are gathered: in forward
    a unit's are read while the unit before computes, and let go; in backward two units
    ahead, since `fully_shard` itself gathers one ahead. ZeRO-1 and 2 gather once a
    step, so that the first forward after an update reads; ZeRO-3 reads for every pass
    (ZeRO-Infinity: Rajbhandari et al., SC 2021, section 5.1).

    Of the units of *stage*, whose parameters are members of *file* by `id`, for
    every pass (*passes*) or for the first forward after `again`."""

    def __init__(
        self,
        stage: nn.Module,
        file: StateFile,
        members: Mapping[int, int],
        *,
        passes: bool,
    ) -> None:
        self._file, self._passes = file, passes
        self._here: set[int] = set()  # units that were read and not let go
        self._done: set[int] = set()  # since `again`
        units = [one for one in stage.modules() if isinstance(one, FSDPModule)]
        self._parts = [
            list(
                file.value_parts(
                    members[id(one)] for one in _own(unit) if id(one) in members
                )
            )
            for unit in units
        ]
        for number, unit in enumerate(units):
            before = partial(self._before, number)
            unit.register_forward_pre_hook(before, prepend=True)
            unit.register_forward_hook(partial(self._after, number))

    def again(self) -> None:
        """The weights have changed."""
        self._done.clear()

    def _before(self, unit: int, *_: Any) -> None:
        if not self._gathers(unit):
            return
        self._read(unit)
        if unit + 1 < len(self._parts):
            self._read(unit + 1)

    def _after(self, unit: int, module: Any, given: Any, output: Any) -> None:
        if not self._gathers(unit):
            return
        self._let_go(unit)
        self._done.add(unit)
        if not self._passes or not torch.is_grad_enabled():
            return
        if unit == len(self._parts) - 1:  # backward may be next
            self._read(unit)
            self._read(unit - 1)
        for one in output if isinstance(output, tuple) else (output,):
            if isinstance(one, Tensor) and one.requires_grad:
                one.register_hook(partial(self._backward, unit))
                break

    def _backward(self, unit: int, _: Tensor) -> None:
        self._read(unit)
        self._let_go(unit)
        if unit - 2 > ROOT:
            self._read(unit - 2)

    def _gathers(self, unit: int) -> bool:
        """Whether a forward gathers: not one that is run again in backward, whose
        parameters are whole, nor ZeRO-2's second."""
        again = torch._C._current_graph_task_id() != -1
        return not again and (self._passes or unit not in self._done)

    def _read(self, unit: int) -> None:
        if unit in self._here or (unit in self._done and not self._passes):
            return
        self._here.add(unit)
        for part in self._parts[unit]:
            self._file.ahead(part)

    def _let_go(self, unit: int) -> None:
        self._here.discard(unit)
        for part in self._parts[unit]:
            self._file.forget(part)


def _own(unit: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of a unit that are not of one inside it, each once."""
    inside = [one for one in unit.modules() if isinstance(one, FSDPModule)][1:]
    others = {id(one) for inner in inside for one in inner.parameters()}
    return (one for one in unit.parameters() if id(one) not in others)
