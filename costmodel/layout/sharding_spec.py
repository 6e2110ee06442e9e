"""`ModuleSharding`: how one operator runs on a mesh (contract 1), in plain words.

For each parameter, input and output a placement: one word a mesh axis, the name of the
dimension that is split there, `whole` or `partial`. An input is *given* in one and
*wanted* in another, an output is *made* in one and *handed* on in another; between two
operators lies exactly `redistribution(handed → wanted)`.

What becomes of a tensor on a mesh axis, in a word.

The name of the dimension that is split along it, `whole`, or `partial`: each rank has a
summand. It is DTensor's Shard, Replicate and Partial with names for numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from profiles.errors import InvalidSpec
from profiles.files import decode


class Placement(StrEnum):
    """Where a tensor lies on the tensor-parallel axis."""

    WHOLE = "whole"  # every rank has all of it
    SEQUENCE = "sequence"  # split along the sequence
    WIDTH = "width"  # split along heads, ffn or vocab
    PARTIAL = "partial"  # every rank has a summand
    ROUTED = "routed"  # with the expert that each row goes to


Placed = tuple[str, ...]  # one word a mesh axis
WHOLE, PARTIAL = Placement.WHOLE.value, Placement.PARTIAL.value


def split(word: str) -> bool:
    """Whether a placement's word names a dimension."""
    return word not in (WHOLE, PARTIAL)


def settled(placed: Placed) -> Placed:
    """A placement whose sums are done: also where the gradient of a tensor lies that
    is handed on so."""
    return tuple(WHOLE if word == PARTIAL else word for word in placed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSharding:
    """A parameter: its dimensions, and where it lies."""

    dims: tuple[str, ...]
    placed: Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSharding:
    """A tensor as it comes, and as the operator wants it."""

    tensor: str
    dims: tuple[str, ...]
    given: Placed
    wanted: Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSharding:
    """A tensor as the operator makes it, and as it hands it on."""

    tensor: str
    dims: tuple[str, ...]
    made: Placed
    handed: Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSharding:
    """One module over the mesh axes `axes`; `local` if it runs on local shards by code
    of its own instead of DTensor's rules.

    Raises InvalidSpec for a placement that does not fit its tensor or its mesh.
    """

    module: str
    axes: tuple[str, ...]
    parameters: Mapping[str, ParameterSharding]
    inputs: tuple[InputSharding, ...]
    output: OutputSharding
    local: bool = False

    def __hash__(self) -> int:
        return hash((self.module, self.axes, self.inputs, self.output))

    def __post_init__(self) -> None:
        for name, held in self.parameters.items():
            self._check(f"parameter {name}", held.dims, held.placed, sums=False)
        for one in self.inputs:
            self._check(f"input {one.tensor}", one.dims, one.given)
            self._check(f"input {one.tensor}", one.dims, one.wanted)
        made = self.output
        self._check(f"output {made.tensor}", made.dims, made.made)
        self._check(f"output {made.tensor}", made.dims, made.handed)

    def _check(
        self, what: str, dims: tuple[str, ...], placed: Placed, *, sums: bool = True
    ) -> None:
        where = f"{self.module}: {what}"
        if len(placed) != len(self.axes):
            raise InvalidSpec(
                f"{where} has {len(placed)} placements for {len(self.axes)} mesh axes "
                f"({', '.join(self.axes)}); give one for each"
            )
        for word in placed:
            if split(word) and word not in dims:
                raise InvalidSpec(
                    f"{where} is split along {word!r}; its dimensions are "
                    f"{', '.join(dims)}"
                )
            if word == PARTIAL and not sums:
                raise InvalidSpec(f"{where} is partial; a parameter is split or whole")


def sharding_documents(shardings: Iterable[ModuleSharding]) -> list[dict[str, Any]]:
    """Plain values for a JSON document; `read_shardings` reads them back."""
    return [asdict(one) for one in shardings]


def read_shardings(data: object, *, what: str) -> tuple[ModuleSharding, ...]:
    """The shardings of a JSON document *what*.

    Raises InvalidFile for anything that is not a list of them, InvalidSpec for one
    that cannot be.
    """
    return decode(data, tuple[ModuleSharding, ...], what=what)
