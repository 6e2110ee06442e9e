"""Random crops of one long row of tokens on disk."""

from __future__ import annotations

from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from profiles.documents import shown
from profiles.errors import Contradiction, InvalidFile
from runtime.data.draws import words


class Tokens(Protocol):
    """Any integers, memory-mapped: only what is cropped is read."""

    def __len__(self) -> int: ...

    def __getitem__(self, wanted: slice, /) -> NDArray[Any]: ...


class Crops:
    """Crop *i* begins at a place that the seed and *i* decide."""

    entropy_nats: float | None = None

    def __init__(self, tokens: Tokens, *, about: str, seq_len: int, seed: int) -> None:
        if len(tokens) <= seq_len:
            raise Contradiction(
                f"{about}: too short for one sequence of {seq_len:,} tokens and the "
                "one after it; choose a shorter --seq-len or more data"
            )
        self._tokens, self.about = tokens, about
        self.seq_len, self.seed = seq_len, seed

    def sequences(self, first: int, count: int) -> Tensor:
        """Crops *first* … *first* + *count* − 1: int64 (count, seq_len + 1)."""
        length = self.seq_len + 1
        crops = np.empty((count, length), dtype=np.int64)
        places = len(self._tokens) - self.seq_len
        for row in range(count):
            start = int(words(self.seed, first + row, 1)[0]) % places
            crops[row] = self._tokens[start : start + length]
        return torch.from_numpy(crops)


def size_of_file(path: Path, name: str) -> int:
    """Bytes in a regular file; raises InvalidFile for what is none, or is empty."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise InvalidFile(
            f"{name} is not there; name a file of text, .npy or .bin, or `synthetic`"
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{name} cannot be read: {error}") from error
    if S_ISDIR(status.st_mode):
        raise InvalidFile(f"{name} is a folder; name the file in it")
    if not S_ISREG(status.st_mode):
        raise InvalidFile(f"{name} is not a regular file")
    if not status.st_size:
        raise InvalidFile(f"{name} is empty; training needs tokens")
    return status.st_size


def mapped(path: Path, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """A file's bytes as numbers, without reading them."""
    try:
        return np.memmap(path, dtype=dtype, mode="r")
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{name} cannot be read: {error}") from error


def named(path: Path) -> str:
    """How messages speak of a data file."""
    return f"data {shown(path)}"
