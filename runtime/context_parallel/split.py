"""A stage's attention and positions, for a rank that has a part of the sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from runtime.collectives import Group
from runtime.context_parallel.gathered import GatheredCore
from runtime.context_parallel.places import places
from runtime.context_parallel.ring import RingCore
from runtime.context_parallel.ulysses import UlyssesCore
from runtime.modules.decoder import Layer, Stage

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
