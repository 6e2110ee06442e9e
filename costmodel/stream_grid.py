"""Streams drawn side by side, for people and for error messages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NoReturn

from costmodel.action import Stream
from profiles.errors import InvalidSpec

AROUND = 6  # rows shown before and after a marked place


def grid(streams: Sequence[Stream], mark: tuple[int, int] | None = None) -> str:
    """One column a rank, one row a position; around *mark* (rank, row), if given.

    >>> from costmodel.schedule import streams
    >>> print(grid(streams("gpipe", 2, 1, 2), mark=(1, 2)))
         rank 0   rank 1
       0 0F0      1F0
       1 0F1      1F1
       2 0B0      1B0      <-- HERE (rank 1)
       3 0B1      1B1
    """
    first, end = 0, max(map(len, streams), default=0)
    if mark is not None:
        first, end = max(mark[1] - AROUND, 0), min(mark[1] + AROUND + 1, end)
    texts = [[str(action) for action in stream[first:end]] for stream in streams]
    width = max([8, *(len(text) for column in texts for text in column)])
    lines = [_line("", [f"rank {rank}" for rank in range(len(streams))], width)]
    for number, row in enumerate(zip_longest(*texts, fillvalue=""), start=first):
        line = _line(str(number), row, width)
        if mark is not None and number == mark[1]:
            line = f"{line.ljust(5 + (width + 1) * len(streams))}"
            line += f"<-- HERE (rank {mark[0]})"
        lines.append(line)
    return "\n".join(lines)


def _line(number: str, texts: Sequence[str], width: int) -> str:
    return f"{number:>4} {' '.join(text.ljust(width) for text in texts)}".rstrip()


def refuse(
    streams: Sequence[Stream], why: str, rank: int | None = None, row: int = 0
) -> NoReturn:
    """Raise InvalidSpec: *why*, and the streams around the place."""
    drawn = grid(streams, None if rank is None else (rank, row))
    raise InvalidSpec(
        f"these streams cannot be executed: {why}; each pass must come once, after "
        f"what it needs and with its transfers: change the streams\n{drawn}"
    )
