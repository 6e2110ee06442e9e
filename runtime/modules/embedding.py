"""Tokens to vectors: a table, and learned positions where the spec has them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from profiles.models.spec import DecoderSpec
from runtime.modules.dropout import Dropout


class Embedding(nn.Module):
    """(batch, seq_len) tokens → (batch, seq_len, hidden)."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.table = nn.Embedding(spec.vocab, spec.hidden)
        self.positions = (
            Positions(spec.max_positions, spec.hidden)
            if spec.position == "learned"
            else None
        )
        self.dropout = Dropout(spec.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.table(tokens)
        if self.positions is not None:
            stream = self.positions(stream)
        return self.dropout(stream)  # type: ignore[no-any-return]


class Positions(nn.Module):
    """Adds the row of its place to each token; `first` is the place of the first."""

    def __init__(self, places: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(places, hidden))
        self.first = 0

    def forward(self, stream: Tensor) -> Tensor:
        return stream + self.weight[self.first : self.first + stream.shape[1]]
