"""A learnable stream: a fixed Markov chain, so the loss of a perfect model is known.

A walker goes round a ring of all tokens, in an order π that the seed shuffles, and
takes one of eight strides d with the chances p:

    yᵢ₊₁ = yᵢ + d (mod vocab),  token = π[y]

Each token thus has eight successors of unequal chance, different ones for each token.
All tokens are equally frequent (every stride is a permutation), and what the next one
adds is H(p) = −Σ p ln p nats after every token: the entropy of the chain, exactly.

Random numbers that are a pure function of a seed and an index.

Philox is counter-based (Salmon et al., SC 2011): a stream begins at any counter at
once, and NumPy keeps its raw numbers the same from version to version.
"""

from __future__ import annotations

from functools import cached_property
from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from profiles.errors import InvalidSpec

Words = NDArray[np.uint64]


def words(seed: int, index: int, count: int) -> Words:
    """*count* random 64-bit words of stream *index*.

    >>> words(7, 3, 4)[:2].tolist() == words(7, 3, 2).tolist()
    True
    """
    # The counter runs in the lowest of its four words; the highest names the stream.
    return np.random.Philox(key=seed, counter=[0, 0, 0, index]).random_raw(count)


def uniforms(raw: Words) -> NDArray[np.float64]:
    """The upper 53 bits of each word as a number in [0, 1)."""
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


CHANCES = (0.40, 0.20, 0.15, 0.10, 0.06, 0.04, 0.03, 0.02)
_ORDER, _STRIDES = 2**63, 2**63 + 1  # streams that no sequence has


class Synthetic:
    """The chain that *seed* makes over *vocab* tokens, and the walks on it."""

    def __init__(self, *, vocab: int, seq_len: int, seed: int) -> None:
        if vocab < 2:
            raise InvalidSpec(f"synthetic data needs a vocabulary of 2, not {vocab}")
        self.vocab, self.seq_len, self.seed = vocab, seq_len, seed
        chances = np.array(CHANCES[:vocab])
        self.chances: NDArray[np.float64] = chances / chances.sum()

    @property
    def about(self) -> str:
        """One line for the terminal."""
        return (
            f"synthetic: a Markov chain over {self.vocab:,} tokens, entropy "
            f"{self.entropy_nats:.4f} nats a token (a guess: {log(self.vocab):.4f})"
        )

    @property
    def entropy_nats(self) -> float:
        """H(p) = −Σ p ln p: the loss of a model that has learned the chain.

        >>> round(Synthetic(vocab=4096, seq_len=8, seed=0).entropy_nats, 4)
        1.6842
        """
        return float(-(self.chances * np.log(self.chances)).sum())

    def sequences(self, first: int, count: int) -> Tensor:
        """Sequences *first* … *first* + *count* − 1: int64 (count, seq_len + 1)."""
        length = self.seq_len + 1
        raw = [words(self.seed, first + row, length) for row in range(count)]
        drawn = np.stack(raw) if raw else np.empty((0, length), dtype=np.uint64)
        steps = self._strides[self._which(uniforms(drawn))]
        steps[:, 0] = drawn[:, 0] % np.uint64(self.vocab)  # anywhere, equally likely
        return torch.from_numpy(self._order[np.cumsum(steps, axis=1) % self.vocab])

    def successors(self, token: int) -> NDArray[np.int64]:
        """The tokens that may follow *token*, in the order of `chances`."""
        place = int(np.flatnonzero(self._order == token)[0])
        return self._order[(place + self._strides) % self.vocab]

    def _which(self, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.searchsorted(np.cumsum(self.chances)[:-1], draws, side="right")

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(words(self.seed, _ORDER, self.vocab), kind="stable")

    @cached_property
    def _strides(self) -> NDArray[np.int64]:
        """Different strides; one of them is 1, so that every token is reached."""
        drawn = words(self.seed, _STRIDES, 16 * len(self.chances)) % self.vocab
        others = dict.fromkeys([*drawn.tolist(), *range(len(self.chances) + 1)])
        others.pop(1, None)
        return np.array([1, *others][: len(self.chances)], dtype=np.int64)
