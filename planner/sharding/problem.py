"""`BlockProblem`: one block on a mesh of named axes, and what may be split there.

The ways to shard an operator: for each mesh axis one loop that is split over it.

What follows for tensors and gradients is `costmodel.operators.loop_sharding`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod

from costmodel.layout import PARTIAL, WHOLE, Placed
from costmodel.machine import Machine, MeshAxis
from costmodel.operators import ROWS, element_bytes, made, own_dims, splittable
from profiles.errors import InvalidSpec, Unsupported
from profiles.hardware import Precision
from profiles.models import ENDS, Block, Kind, Operator, Tensor

ENTRY = "(input)"  # by this name goes what comes into the block
DIMENSIONS = frozenset({*ROWS, "heads", "ffn", "shared_ffn", "vocab", "hidden"})
ROUTED = (Kind.GROUPED_MATMUL, Kind.DISPATCH, Kind.COMBINE)


@dataclass(frozen=True, kw_only=True)
class BlockProblem:
    """A block of *sequences* sequences on the mesh *axes*, a micro-batch of a step.

    *splits* are the dimensions that may be split (`DIMENSIONS`: all). Gradients are
    summed over data-parallel ranks once in *micro_batches* passes. With *even*, every
    operator and tensor is split over every axis (Tofu's rule), unless nothing divides.
    *decided* are the words of the first axes, by operator (`OperatorChoice` in two).

    At each moment a rank holds *state_bytes* for each parameter, what *in_flight*
    micro-batches keep for backward, and what the operator at work needs; where
    *memory_bytes* is given, that is the most. Raises InvalidSpec for numbers below one
    and dimensions of no such name, Unsupported for blocks with routed experts.
    """

    block: Block
    axes: tuple[MeshAxis, ...]
    sequences: int
    seq_len: int
    machine: Machine
    precision: Precision
    micro_batches: int = 1
    flash_attention: bool = True
    splits: frozenset[str] = DIMENSIONS
    even: bool = False
    decided: Mapping[str, tuple[Placed, Placed]] = field(default_factory=dict)
    memory_bytes: float | None = None
    state_bytes: float = 18.0
    in_flight: int = 1

    def __post_init__(self) -> None:
        if not self.axes:
            raise InvalidSpec("a mesh has at least one axis; give mesh_axes(tp=1)")
        if min(self.sequences, self.seq_len, self.micro_batches, self.in_flight) < 1:
            raise InvalidSpec(
                "sequences, seq_len, micro_batches and in_flight are at least 1, got "
                f"{self.sequences}, {self.seq_len}, {self.micro_batches} and "
                f"{self.in_flight}"
            )
        if not self.splits <= DIMENSIONS:
            raise InvalidSpec(
                f"{', '.join(sorted(self.splits - DIMENSIONS))} cannot be split; "
                f"dimensions are {', '.join(sorted(DIMENSIONS))}"
            )
        if any(one.kind in ROUTED for one in self.block.operators):
            raise Unsupported(
                f"block {self.block.name!r} routes tokens to experts, whose placement "
                "is that of --ep and --etp; operators are sharded in dense blocks"
            )
        if not self.block.is_plain:
            raise Unsupported(
                f"block {self.block.name!r} has other rows than tokens, or reads what "
                "layers further before it made; operators are sharded in others"
            )

    @property
    def loops(self) -> bool:
        """Whether what the block hands on comes into one like it."""
        return self.block.entry is not None and self.block.name not in ENDS

    @cached_property
    def extents(self) -> Mapping[str, int]:
        """How many equal parts each dimension has."""
        known = self.block.extents
        rows = {"batch": self.sequences, "sequence": self.seq_len}
        widths = {name: known[name] for name in DIMENSIONS if name in known}
        return {**widths, **rows, "heads": self.block.heads}

    def divides(self, words: tuple[str, ...]) -> bool:
        """Whether the dimensions in *words* are whole after being split so often."""
        return all(
            self.extents[name] % self.ways(words, name) == 0
            and (name != "heads" or self._has_kv_heads(self.ways(words, name)))
            for name in set(words) & DIMENSIONS
        )

    def ways(self, words: tuple[str, ...], *names: str) -> int:
        """Over how many ranks the dimensions *names* are split."""
        placed = zip(words, self.axes, strict=True)
        return prod(axis.size for word, axis in placed if word in names)

    def tensor_bytes(self, tensor: Tensor) -> float:
        """Bytes of a tensor over the whole mesh."""
        count = float(self.sequences * self.seq_len) * tensor.copies
        for name in tensor.dims:
            if name not in ROWS:
                count *= self.width(name)
        return count * element_bytes(tensor, self.precision)

    def width(self, name: str) -> int:
        """Of a dimension, or of several laid side by side."""
        if name in self.block.extents:
            return self.block.extents[name]
        return sum(self.block.extents[part] for part in name.split("+"))

    def _has_kv_heads(self, ways: int) -> bool:
        """Each rank has as many key-value heads, or a copy of one."""
        held = max(self.block.kv_heads, 1)
        return held % ways == 0 or ways % held == 0


@dataclass(frozen=True, slots=True)
class OperatorChoice:
    """The loop of each axis (`whole`: all ranks do the same), and where the output is
    handed on: as it is made, but that sums are done, whole or split."""

    loops: Placed
    handed: Placed


def choices(operator: Operator, problem: BlockProblem) -> tuple[OperatorChoice, ...]:
    """Every sharding of *operator* that divides."""
    allowed = [one for one in splittable(operator) if one in problem.splits]
    known, handed_on = problem.decided.get(operator.name, ((), ()))
    words = _begun(known, _words(allowed, problem))
    nests = {
        loops: _handed(made(operator, loops), operator, problem, handed_on)
        for loops in product(*words)
        if problem.divides(loops)
    }
    possible = [loops for loops, handed in nests.items() if handed]
    return tuple(
        OperatorChoice(loops, handed)
        for loops in _split_most(possible, problem)
        for handed in nests[loops]
    )


def entry_choices(tensor: Tensor, problem: BlockProblem) -> tuple[Placed, ...]:
    """Every placement in which a block may be given its input."""
    names = [one for one in own_dims(tensor) if one in problem.splits]
    known, _ = problem.decided.get(ENTRY, ((), ()))
    places = product(*_begun(known, _words(names, problem)))
    fits = _split_most([one for one in places if problem.divides(one)], problem)
    return tuple(fits)


def _handed(
    placed: Placed, operator: Operator, problem: BlockProblem, known: Placed
) -> list[Placed]:
    names = [one for one in own_dims(operator.output) if one in problem.splits]
    words = [
        every if word == PARTIAL else [word]
        for word, every in zip(placed, _words(names, problem), strict=True)
    ]
    places = product(*_begun(known, words))
    return _split_most([one for one in places if problem.divides(one)], problem)


def _begun(known: Placed, words: list[list[str]]) -> list[list[str]]:
    """*words* of each axis, where the first axes are decided those alone."""
    return [*([word] for word in known), *words[len(known) :]]


def _words(names: list[str], problem: BlockProblem) -> list[list[str]]:
    """What each axis may have: one of *names* or none; on one device, none."""
    return [[*names, WHOLE] if axis.size > 1 else [WHOLE] for axis in problem.axes]


def _split_most(places: list[Placed], problem: BlockProblem) -> list[Placed]:
    """Where all is to be even, those that leave the fewest axes whole."""
    if not problem.even:
        return places
    least = min((one.count(WHOLE) for one in places), default=0)
    return [one for one in places if one.count(WHOLE) == least]
