"""`Crops`: random crops of one long row of tokens; text and token files as such rows.

text    the bytes of a file, 0 to 255, in whatever encoding it is
.npy    one dimension of any integers
.bin    little-endian uint16, as most tokenising scripts write it, or uint32 where
        the vocabulary is larger than that holds
"""

from __future__ import annotations

from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from profiles.errors import Contradiction, InvalidFile
from profiles.files import shown
from profiles.units import MiB
from runtime.data.synthetic import words


class Tokens(Protocol):
    """Any integers, memory-mapped: only what is cropped is read."""

    def __len__(self) -> int: ...

    def __getitem__(self, wanted: slice, /) -> NDArray[Any]: ...


class Crops:
    """Crop *i* begins at a place that the seed and *i* decide."""

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


BYTES = 256


def text(path: Path, *, vocab: int, seq_len: int, seed: int) -> Crops:
    """Random crops of a file's bytes; raises InvalidFile or Contradiction."""
    name = named(path)
    size = size_of_file(path, name)
    require_bytes(vocab, name)
    tokens = mapped(path, np.dtype(np.uint8), name)
    about = f"{name}, {size:,} bytes as tokens"
    return Crops(tokens, about=about, seq_len=seq_len, seed=seed)


def require_bytes(vocab: int, name: str) -> None:
    """Raise Contradiction where *vocab* has not a token for each byte of a text."""
    if vocab < BYTES:
        raise Contradiction(
            f"{name} is text, whose bytes need a vocabulary of {BYTES}; the model has "
            f"{vocab}: choose another model, or give tokens"
        )


NUMPY, BINARY = ".npy", ".bin"
_CHUNK = 4 * MiB  # tokens looked at together


def tokenised(
    path: Path, *, vocab: int, seq_len: int, seed: int, checked: bool = False
) -> Crops:
    """Random crops of a tokenised file; raises InvalidFile or Contradiction.

    Every token is held against *vocab*, unless *checked* says that it was before.
    """
    name = named(path)
    size_of_file(path, name)
    numpy_file = path.suffix.lower() == NUMPY
    tokens = _array(path, name) if numpy_file else _binary(path, vocab, name)
    about = f"{name}, {len(tokens):,} tokens of {tokens.dtype}"
    crops = Crops(tokens, about=about, seq_len=seq_len, seed=seed)
    if not checked:
        _require_narrow(tokens, numpy_file, name)
        require_known(tokens, vocab, name)
    return crops


def _array(path: Path, name: str) -> NDArray[Any]:
    try:
        tokens: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidFile(f"{name} is no array of tokens: {reason}") from error
    if not isinstance(tokens, np.ndarray):
        raise InvalidFile(f"{name} is an archive; save one array with numpy.save")
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise InvalidFile(
            f"{name} holds {tokens.dtype} of shape {tokens.shape}; tokens are integers "
            "in one dimension"
        )
    return tokens


def _binary(path: Path, vocab: int, name: str) -> NDArray[Any]:
    dtype = np.dtype("<u2" if vocab <= 2**16 else "<u4")
    if path.stat().st_size % dtype.itemsize:
        raise InvalidFile(
            f"{name} is no whole number of {dtype.name}, which a vocabulary of "
            f"{vocab:,} is stored in"
        )
    return mapped(path, dtype, name)


def require_known(tokens: Tokens, vocab: int, name: str) -> None:
    """Raise Contradiction for a token outside the vocabulary; reads the whole file."""
    for first in range(0, len(tokens), _CHUNK):
        chunk = tokens[first : first + _CHUNK]
        if int(chunk.max()) < vocab and int(chunk.min()) >= 0:
            continue
        place = int(np.flatnonzero((chunk >= vocab) | (chunk < 0))[0])
        raise Contradiction(
            f"{name} has token {int(chunk[place]):,} at position {first + place:,}; "
            f"the model's vocabulary is 0 to {vocab - 1:,}: use the model's own "
            "tokeniser, or a model with this vocabulary"
        )


def _require_narrow(tokens: NDArray[Any], typed: bool, name: str) -> None:
    """Raise InvalidFile where 32-bit tokens would be read as twice as many 16-bit ones.

    The upper halves of small 32-bit numbers are all 0.
    """
    beginning = tokens[:_CHUNK]
    if typed or tokens.itemsize > 2 or len(beginning) < 4:
        return
    if not beginning[1::2].any() and beginning[::2].any():
        raise InvalidFile(
            f"{name} looks like 32-bit tokens: every other 16-bit number is 0; write "
            "uint16, or save it as .npy"
        )
