"""`source`: the training data that a name or a path stands for.

A source has sequences numbered 0, 1, 2 … without end, each a pure function of the seed
and its number. Step t of a global batch of g sequences reads t·g … t·g + g − 1,
whichever ranks read them, so a resumed run goes on exactly where it stopped.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Protocol

from torch import Tensor

from profiles.errors import InvalidSpec
from runtime.data.hugging_face import hugging_face
from runtime.data.names import HUGGING_FACE, SYNTHETIC
from runtime.data.synthetic import Synthetic
from runtime.data.token_files import BINARY, NUMPY, text, tokenised


class Source(Protocol):
    """Sequences of tokens, numbered from 0."""

    @property
    def about(self) -> str:
        """One line for the terminal."""

    def sequences(self, first: int, count: int) -> Tensor:
        """Sequences *first* … *first* + *count* − 1: int64 (count, seq_len + 1).

        The inputs are all but the last column, the targets all but the first.
        """


def source(
    name_or_path: str | Path,
    *,
    vocab: int,
    seq_len: int,
    seed: int,
    checked: bool = False,
) -> Source:
    """The data called ``synthetic``, a dataset (``hf:…``), or a file: tokens (.npy,
    .bin) or any text.

    The tokens of a file are read once and held against *vocab*; *checked* says that
    this was done before. Raises InvalidFile or Contradiction, in one line, for a file
    that is missing, empty, too short for one sequence, of the wrong type, or that holds
    tokens which the model does not know.
    """
    if not 0 <= seed < 2**64:
        raise InvalidSpec(f"seed {seed} must be from 0 to 2^64 − 1")
    if str(name_or_path) == SYNTHETIC:
        return Synthetic(vocab=vocab, seq_len=seq_len, seed=seed)
    if str(name_or_path).startswith(HUGGING_FACE):
        given = str(name_or_path)
        return hugging_face(
            given, vocab=vocab, seq_len=seq_len, seed=seed, checked=checked
        )
    path = Path(name_or_path)
    if path.suffix.lower() not in (NUMPY, BINARY):
        return text(path, vocab=vocab, seq_len=seq_len, seed=seed)
    return tokenised(path, vocab=vocab, seq_len=seq_len, seed=seed, checked=checked)


def fingerprint(read: Source) -> str:
    """Tells sources apart by what they begin with: the same data under another name
    has the same one, another seed another."""
    of = getattr(read, "origin", read)
    first = of.sequences(0, 1).contiguous().numpy()
    return f"{zlib.crc32(first.tobytes()):08x}"
