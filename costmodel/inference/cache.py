"""The key-value cache: what attention keeps of every token that it has seen.

    heads     2 · kv_heads · head_dim elements a layer and token, cut over tp by heads
    latents   kv_rank + rope of latent attention, whole on every tp rank (DeepSeek-V2,
              2024, section 2.1)

A layer that looks through a window keeps no more tokens than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiles.graph import Block
from profiles.operators import Kind

Array = NDArray[Any]


def attends(block: Block) -> bool:
    """Whether a block has attention, and so a cache."""
    return any(item.kind is Kind.ATTENTION for item in block.operators)


def is_latent(block: Block) -> bool:
    """Whether it keeps latents instead of keys and values."""
    return "kv_rank" in block.extents


def cached_elements(block: Block, tp: int = 1) -> int:
    """Elements that a rank keeps of a token in one layer."""
    if not attends(block):
        return 0
    if is_latent(block):
        return block.extents["kv_rank"] + block.extents["rope"]
    return 2 * max(-(-block.kv_heads // tp), 1) * block.head_dim


def span(block: Block, context: Any) -> Array:
    """Tokens that a layer looks at, and keeps, of *context*."""
    most = context if block.window is None else np.minimum(context, block.window)
    return np.asarray(most)


def token_elements(layers: Iterable[Block]) -> int:
    """Elements of a token in all *layers* of a model together, windows left out."""
    return sum(cached_elements(block) for block in layers)
