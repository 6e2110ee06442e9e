"""A text file as tokens: its bytes, 0 to 255, in whatever encoding it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from profiles.errors import Contradiction
from runtime.data.crops import Crops, mapped, named, size_of_file

BYTES = 256


def text(path: Path, *, vocab: int, seq_len: int, seed: int) -> Crops:
    """Random crops of a file's bytes; raises InvalidFile or Contradiction."""
    name = named(path)
    size = size_of_file(path, name)
    if vocab < BYTES:
        raise Contradiction(
            f"{name} is text, whose bytes need a vocabulary of {BYTES}; the model has "
            f"{vocab}: choose another model, or tokenise the text to .npy or .bin"
        )
    tokens = mapped(path, np.dtype(np.uint8), name)
    about = f"{name}, {size:,} bytes as tokens"
    return Crops(tokens, about=about, seq_len=seq_len, seed=seed)
