"""Which places of the sequence a context-parallel rank has.

ring, all-gather   the i-th of 2n chunks from the head and the i-th from the tail, so
                   that a causal mask leaves every rank as much work (zig-zag;
                   Llama 3, section 3.3.2)
ulysses            the i-th of n parts: each rank masks whole sequences
"""

from __future__ import annotations

import torch
from torch import Tensor


def places(kind: str, *, rank: int, ranks: int, seq_len: int) -> Tensor:
    """The places of rank *rank* of *ranks*, rising: int64 (seq_len / ranks,).

    Raises ValueError where the sequence does not divide.

    >>> places("ring", rank=0, ranks=2, seq_len=8).tolist()
    [0, 1, 6, 7]
    >>> places("ulysses", rank=1, ranks=2, seq_len=8).tolist()
    [4, 5, 6, 7]
    """
    chunks = ranks if kind == "ulysses" else 2 * ranks
    if seq_len % chunks:
        raise ValueError(f"{seq_len} tokens do not split into {chunks} chunks")
    parts = torch.arange(seq_len).chunk(chunks)
    if kind == "ulysses":
        return parts[rank]
    return torch.cat((parts[rank], parts[chunks - 1 - rank]))
