"""What the clocks are asked for: operations, exchanges, and for how long.

Plain values without torch, so that the plan is made where torch is not loaded, and
travels to the measuring processes as JSON.

Names for PyTorch's types in modules that are imported without PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from profiles.samples import CONVOLUTIONS

Tensor = Any  # torch.Tensor
Parameter = Any  # torch.nn.Parameter
Device = Any  # torch.device
DType = Any  # torch.dtype
Operands = Sequence[Any]  # tensors and plain values


FORWARD, BACKWARD = "forward", "backward"
BACKWARD_INPUT, BACKWARD_WEIGHT = "backward-input", "backward-weight"
# Whose backward is timed in two halves.
PRODUCTS = ("matmul", "grouped-matmul", *CONVOLUTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operator pass to be timed; the fields are those of its sample key.

    What the key leaves out is as in the model that is measured for. `variant`: ``bias``
    for a product that adds one, the norm of ``qk-norm``, ``separate`` for attention
    whose queries and keys are made after the packed product. `pieces`: the sizes of
    the parameter tensors that a step's kinds walk over, the sequence length and the
    table's rows for ``positions``, the key-value heads for ``rotary``, how many experts
    rows are sorted by for ``dispatch`` and ``permute``.
    """

    kind: str
    direction: str
    shape: tuple[int, ...]
    precision: str = "fp32"
    variant: str = ""
    pieces: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One collective over groups of *ranks*, *groups* of them at the same moment.

    The ranks of a group are spread evenly over so many *nodes*. *how* they come to it
    is `SOON`, `BESIDE`, or long after the one before.
    """

    collective: str
    ranks: int
    nodes: int = 1
    groups: int = 1
    size_bytes: int
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """All that one rank needs to know."""

    device: str  # cpu or cuda
    ranks: int
    nodes: int = 1
    threads: int
    operations: tuple[Operation, ...]
    exchanges: tuple[Exchange, ...]
    arena_bytes: float  # of the block that operands are dealt from
    cache_bytes: float
    rendezvous: str  # a file that the ranks meet at; HOST:PORT of several nodes' store
    budget_s: float
    most_repeats: int
    timeout_s: float

    @property
    def local_ranks(self) -> int:
        """Ranks of one node."""
        return self.ranks // self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of each repeat on one rank."""

    seconds: tuple[float, ...]
    saved_bytes: float | None = None
