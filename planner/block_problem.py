"""`BlockProblem`: one block on a mesh of named axes, and what may be split there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from costmodel.machine import Machine
from costmodel.mesh_axes import MeshAxis
from costmodel.operator_sharding import ROWS
from costmodel.placements import Placed
from costmodel.sharding import element_bytes
from profiles.errors import InvalidSpec, Unsupported
from profiles.graph import ENDS, Block
from profiles.operators import Kind, Tensor
from profiles.precision import Precision

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
