"""Tokens to vectors: a table, and learned positions where the spec has them.

Dropout that keeps a mask of one byte an element, on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from profiles.models import DecoderSpec


class Dropout(nn.Module):
    """Zeroes a share of its input while training; the identity where the share is 0.

    `F.dropout` keeps the scaled mask as floats on a CPU, four times as much.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, stream: Tensor) -> Tensor:
        if not self.share or not self.training:
            return stream
        return torch.native_dropout(stream, self.share, True)[0]


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
        self.dropout = Dropout(spec.embedding_dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.table(tokens)
        if self.positions is not None:
            stream = self.positions(stream)
        return self.dropout(stream)  # type: ignore[no-any-return]


class Positions(nn.Module):
    """Adds the row of its place to each token: of `places`, from the first without."""

    def __init__(self, places: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(places, hidden))
        self.places: Tensor | None = None

    def forward(self, stream: Tensor) -> Tensor:
        return stream + rows_of(self.weight, self.places, 0, stream.shape[1])


def rows_of(table: Tensor, places: Tensor | None, first: int, length: int) -> Tensor:
    """Rows of *length* tokens from the *first*, which lie at *places*, or in a row."""
    if places is None:
        return table[first : first + length]
    return table[places[first : first + length].to(table.device)]
