"""A stage's attention and positions, for a rank that has a part of the sequence.

Which places of the sequence a context-parallel rank has.

ring, all-gather   the i-th of 2n chunks from the head and the i-th from the tail, so
                   that a causal mask leaves every rank as much work (zig-zag;
                   Llama 3, section 3.3.2)
ulysses            the i-th of n parts: each rank masks whole sequences
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from runtime.models import Layer, Stage
from runtime.parallel.collectives import Group
from runtime.parallel.context_parallel.all_gather import GatheredCore
from runtime.parallel.context_parallel.ring import RingCore
from runtime.parallel.context_parallel.ulysses import UlyssesCore


def places(kind: str, *, rank: int, ranks: int, seq_len: int) -> Tensor:
    """The places of rank *rank* of *ranks*, rising: int64 (seq_len / ranks,).

    Raises ValueError where the sequence does not divide.

    >>> places("ring", rank=0, ranks=2, seq_len=8).tolist()
    [0, 1, 6, 7]
    >>> places("ulysses", rank=1, ranks=2, seq_len=8).tolist()
    [4, 5, 6, 7]
    """
    chunks = ranks if kind == "ulysses" else 2 * ranks
    if seq_len % chunks:
        raise ValueError(f"{seq_len} tokens do not split into {chunks} chunks")
    parts = torch.arange(seq_len).chunk(chunks)
    if kind == "ulysses":
        return parts[rank]
    return torch.cat((parts[rank], parts[chunks - 1 - rank]))


CORES: Final[dict[str, type[nn.Module]]] = {
    "ring": RingCore,
    "all-gather": GatheredCore,
    "ulysses": UlyssesCore,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The ranks that a sequence is split over, and how; no group where it is whole."""

    group: Group | None
    kind: str
    seq_len: int

    @property
    def ranks(self) -> int:
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank()

    def places(self) -> Tensor:
        """The places of this rank's tokens in the sequence: int64."""
        if self.group is None:
            return torch.arange(self.seq_len)
        return places(self.kind, rank=self.rank, ranks=self.ranks, seq_len=self.seq_len)


def split(stage: Stage, context: Context) -> None:
    """Make *stage* work on this rank's part of the sequence, in place."""
    if context.group is None:
        return
    mine = context.places()
    if stage.embedding is not None and stage.embedding.positions is not None:
        stage.embedding.positions.places = mine
    for layer in stage.layers.values():
        assert isinstance(layer, Layer), "layers of the catalogue's decoder are split"
        layer.attention.core = CORES[context.kind](context.group)  # type: ignore[assignment]
        layer.attention.places = mine
