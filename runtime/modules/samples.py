"""Samples in the form of a module's example inputs, numbered from 0: synthetic, or of
tokens.

A batch travels as the numbers of its samples: whoever needs the inputs of a sample (a
stage of a pipeline that computes masks, say) makes them from its number and the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from profiles.trace import Example
from runtime.data import Source

DIGITS: Final = 8  # of a number that travels with activations
BASE: Final = 128  # exact in any format that activations have


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Inputs that are of *source*, by their place among the inputs (from 1): tokens,
    and as labels those again where the module *shifts* them itself, else those that
    come next."""

    source: Source
    place: int
    labels: int
    shifts: bool

    def of(self, numbers: Sequence[int]) -> dict[int, Tensor]:
        """Of the samples of these numbers."""
        rows = torch.cat([self.source.sequences(number, 1) for number in numbers])
        read, follows = rows[:, :-1], rows[:, 1:]
        return {self.place: read, self.labels: read if self.shifts else follows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A `runtime.data.Source` whose sequences are numbers of samples, again and again
    as many as a sequence has tokens."""

    example: Example
    seq_len: int
    seed: int
    name: str
    tokens: Tokens | None = None  # else all is drawn

    @property
    def about(self) -> str:
        """One line for the terminal."""
        if self.tokens is not None:
            return self.tokens.source.about
        return f"synthetic: random samples of the form that {self.name} says"

    @property
    def origin(self) -> Source:
        """What two runs' samples are told apart by."""
        return self if self.tokens is None else self.tokens.source

    def sequences(self, first: int, count: int) -> Tensor:
        """Numbers *first* … *first* + *count* − 1, int64 (count, seq_len + 1)."""
        numbers = torch.arange(first, first + count)
        return numbers[:, None].expand(count, self.seq_len + 1)

    def inputs(self, numbers: Tensor) -> Example:
        """What the module is called with for these samples."""
        place = 0
        read = {} if self.tokens is None else self.tokens.of(numbers.tolist())

        def made(one: Tensor) -> Tensor:
            nonlocal place
            place += 1
            if place in read:
                return read[place].to(numbers.device, one.dtype)
            if not self.example.batched(one):
                return one.to(numbers.device)
            rows = [self._row(one, place, int(number)) for number in numbers]
            return torch.stack(rows).to(numbers.device)

        return self.example.map(made)

    def _row(self, like: Tensor, place: int, number: int) -> Tensor:
        """One sample of an input: normal numbers, or any of the example's range."""
        source = torch.Generator().manual_seed(hash((self.seed, place, number)) % 2**63)
        shape = like.shape[1:]
        if like.dtype is torch.bool:
            return torch.rand(shape, generator=source) < 0.5
        if like.is_floating_point() or like.is_complex():
            drawn = torch.randn(shape, generator=source, dtype=torch.float32)
            if float(like.min()) >= 0:  # shares, say
                drawn = torch.rand(shape, generator=source)
            return drawn.to(like.dtype)
        least, most = int(like.min()), int(like.max())
        drawn = torch.randint(least, most + 1, shape, generator=source)
        return drawn.to(like.dtype)


def digits(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers (batch) as digits (batch, DIGITS), which activations can carry.

    >>> found = digits(torch.tensor([0, 300, 2**40 + 1]), torch.bfloat16)
    >>> numbers_of(found).tolist()
    [0, 300, 1099511627777]
    """
    places = BASE ** torch.arange(DIGITS, device=numbers.device)
    return (numbers[:, None] // places % BASE).to(dtype)


def numbers_of(found: Tensor) -> Tensor:
    """The numbers that `digits` were made of."""
    places = BASE ** torch.arange(DIGITS, device=found.device)
    return (found.to(torch.int64) * places).sum(1)
