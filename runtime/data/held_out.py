"""Sequences of a source that training does not come to: for evaluation.

The same walks on a synthetic chain never come twice. Of a file other crops are read,
which may lie over those of training: evaluate on another file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import Tensor

from runtime.data.source import Source

BEYOND: Final = 2**40  # no run reads so many sequences


@dataclass(frozen=True, slots=True)
class HeldOut:
    """*source* from its sequence `BEYOND` on, counted from 0."""

    source: Source

    @property
    def about(self) -> str:
        """One line for the terminal."""
        return self.source.about

    @property
    def entropy_nats(self) -> float | None:
        """As the source's."""
        return self.source.entropy_nats

    def sequences(self, first: int, count: int) -> Tensor:
        """Sequences *first* … of those that are held out."""
        return self.source.sequences(BEYOND + first, count)
