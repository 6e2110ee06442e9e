"""A Hugging Face dataset as one long row of tokens, read from its Arrow files in place.

`hf:NAME_OR_FOLDER[:SPLIT[:COLUMN]]`: a dataset that `save_to_disk` wrote, or one that
`load_dataset` knows; by default its split train. A column of lists of integers
(`input_ids`) is tokens, one of strings (`text`) its bytes; documents follow each other
as they are stored, and crops of them are as random, and as repeatable, as of a file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from profiles.errors import Contradiction, InvalidFile, MeshwrightError
from profiles.files import require_package
from runtime.data.names import HUGGING_FACE
from runtime.data.token_files import Crops, require_bytes, require_known

COLUMNS: Final = ("input_ids", "tokens", "text")  # the first of them that is there
SPLIT: Final = "train"  # where none is named


class Joined:
    """Arrays one after another, sliced like one; nothing is copied but the slice."""

    def __init__(self, parts: Sequence[NDArray[Any]]) -> None:
        self._parts = [part for part in parts if len(part)]
        self._ends = list(accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, wanted: slice) -> NDArray[Any]:
        first, last, _ = wanted.indices(len(self))
        found = []
        place = bisect_right(self._ends, first)
        while first < last:
            begin = self._ends[place] - len(self._parts[place])
            found.append(self._parts[place][first - begin : last - begin])
            first, place = self._ends[place], place + 1
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def hugging_face(
    name: str, *, vocab: int, seq_len: int, seed: int, checked: bool = False
) -> Crops:
    """Random crops of the dataset that *name*, with its ``hf:``, stands for.

    Raises Unsupported where the package datasets is missing, InvalidFile for what it
    cannot load, Contradiction for a column or tokens that the model does not take.
    """
    require_package("datasets", f"--data {name}", extra="huggingface")
    where, split, column = _asked(name)
    table = _loaded(name, where, split)
    column = column or _column(name, table)
    tokens, kind = _tokens(name, table, column)
    if not checked:
        if kind == "bytes":
            require_bytes(vocab, f"data {name}")
        require_known(tokens, vocab, f"data {name}")
    about = f"{name}, {len(tokens):,} {kind} of column {column}"
    return Crops(tokens, about=about, seq_len=seq_len, seed=seed)


def _asked(name: str) -> tuple[str, str, str | None]:
    where, *rest = name.removeprefix(HUGGING_FACE).split(":")
    split, column, *more = [*rest, *("", "")[len(rest) :]]
    if not where or more:
        raise InvalidFile(
            f"--data {name}: write hf:NAME_OR_FOLDER, hf:NAME:SPLIT or "
            "hf:NAME:SPLIT:COLUMN"
        )
    return where, split or SPLIT, column or None


def _loaded(name: str, where: str, split: str) -> Any:
    """The Arrow table of one split."""
    import datasets

    datasets.disable_progress_bars()
    try:
        if Path(where).is_dir():
            found = datasets.load_from_disk(where)
        else:
            found = datasets.load_dataset(where, split=split)
        if isinstance(found, datasets.DatasetDict):
            found = found[split]
        elif split not in (SPLIT, str(found.split)):
            raise Contradiction(
                f"--data {name}: {where} is one dataset, not a set of splits; leave "
                f"{split} out (hf:{where}, or hf:{where}::COLUMN)"
            )
        return found.flatten_indices() if found._indices is not None else found
    except MeshwrightError:
        raise
    except Exception as error:  # of the hub, of the network, of a script: its own
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise InvalidFile(f"--data {name} cannot be loaded: {why[0]}") from error


def _column(name: str, table: Any) -> str:
    for column in COLUMNS:
        if column in table.column_names:
            return column
    raise Contradiction(
        f"--data {name} has columns {', '.join(table.column_names)}; say which holds "
        "tokens or text: hf:NAME:SPLIT:COLUMN"
    )


def _tokens(name: str, table: Any, column: str) -> tuple[Joined, str]:
    import pyarrow

    if column not in table.column_names:
        raise Contradiction(
            f"--data {name} has no column {column}; it has "
            f"{', '.join(table.column_names)}"
        )
    stored = table.data.column(column)
    kinds = pyarrow.types
    if kinds.is_string(stored.type) or kinds.is_large_string(stored.type):
        return Joined([_bytes(chunk) for chunk in stored.chunks]), "bytes"
    lists = kinds.is_list(stored.type) or kinds.is_large_list(stored.type)
    if lists and kinds.is_integer(stored.type.value_type):
        parts = [
            chunk.flatten().to_numpy(zero_copy_only=False) for chunk in stored.chunks
        ]
        return Joined(parts), "tokens"
    raise Contradiction(
        f"--data {name}: column {column} holds {stored.type}; tokens are lists of "
        "integers, text is strings"
    )


def _bytes(chunk: Any) -> NDArray[np.uint8]:
    """The bytes of all strings of an Arrow chunk, where they are stored."""
    _, offsets, values = chunk.buffers()
    if values is None:
        return np.empty(0, dtype=np.uint8)
    wide = np.int64 if str(chunk.type) == "large_string" else np.int32
    ends = np.frombuffer(offsets, dtype=wide)
    first, last = ends[chunk.offset], ends[chunk.offset + len(chunk)]
    return np.frombuffer(values, dtype=np.uint8)[first:last]
