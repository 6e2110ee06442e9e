"""Rotary positions: pairs of a head's dimensions turned by the token's place."""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from profiles.models.numerics import Numerics, RopeScaling


def frequencies(head_dim: int, numerics: Numerics, device: torch.device) -> Tensor:
    """Radians a token of each pair of a head's dimensions: fp32 (head_dim / 2,).

    θ^(−2i/d), i from 0 (Su et al. 2021, section 3.4.3), scaled as the numerics say.
    """
    half = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32)
    turns: Tensor = numerics.rope_theta ** (-half / head_dim)
    scaling = numerics.rope_scaling
    return turns if scaling is None else _scaled(turns, scaling)


def _scaled(turns: Tensor, scaling: RopeScaling) -> Tensor:
    """As `RopeScaling` says: of `llama3` a mean of both, by how many waves of a
    frequency are in the context that was trained first."""
    slow = turns / scaling.factor
    if scaling.kind == "linear":
        return slow
    waves = scaling.original_positions * turns / (2 * pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((waves - low) / (high - low)).clamp(0, 1)
    return kept * turns + (1 - kept) * slow


def angles(
    places: Tensor, head_dim: int, device: torch.device, numerics: Numerics
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the tokens at *places*, (places, head_dim) each, fp32."""
    turns = frequencies(head_dim, numerics, device)
    place = places.to(device=device, dtype=torch.float32)
    angle = torch.outer(place, turns).repeat(1, 2)
    return angle.cos(), angle.sin()


def turned(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """*heads* (batch, heads, seq_len, head_dim), turned by their places.

    >>> cosine, sine = angles(torch.arange(2), 4, torch.device("cpu"), Numerics())
    >>> x = torch.ones(1, 1, 2, 4)
    >>> bool((turned(x, cosine, sine).norm() - x.norm()).abs() < 1e-6)
    True
    """
    first, second = heads.chunk(2, dim=-1)
    quarter = torch.cat((-second, first), dim=-1)
    return heads * cosine.to(heads.dtype) + quarter * sine.to(heads.dtype)
