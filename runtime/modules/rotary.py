"""Rotary positions: pairs of a head's dimensions turned by the token's place."""

from __future__ import annotations

import torch
from torch import Tensor

_BASE = 10000.0  # Su et al. 2021, section 3.4.3


def angles(
    places: Tensor, head_dim: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the tokens at *places*, (places, head_dim) each, fp32."""
    half = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32)
    turns = _BASE ** (-half / head_dim)
    place = places.to(device=device, dtype=torch.float32)
    angle = torch.outer(place, turns).repeat(1, 2)
    return angle.cos(), angle.sin()


def turned(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """*heads* (batch, heads, seq_len, head_dim), turned by their places.

    >>> cosine, sine = angles(torch.arange(2), 4, torch.device("cpu"))
    >>> x = torch.ones(1, 1, 2, 4)
    >>> bool((turned(x, cosine, sine).norm() - x.norm()).abs() < 1e-6)
    True
    """
    first, second = heads.chunk(2, dim=-1)
    quarter = torch.cat((-second, first), dim=-1)
    return heads * cosine.to(heads.dtype) + quarter * sine.to(heads.dtype)
