"""Causal self-attention, grouped or not, with one product for q, k and v.

The rows of `qkv` are laid out by key-value head, as in Megatron-LM: its query heads,
then its key and its value. A slice of the rows is then a smaller attention.

The norm that a spec names.

Rotary positions: pairs of a head's dimensions turned by the token's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from math import pi

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiles.measure.timing import turned
from profiles.models import DecoderSpec, Numerics, RopeScaling


def norm(spec: DecoderSpec, width: int) -> nn.Module:
    """LayerNorm or RMSNorm over the last *width* elements."""
    if spec.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=spec.numerics.norm_epsilon)
    return nn.LayerNorm(width, eps=spec.numerics.norm_epsilon, bias=spec.norm_bias)


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


class Attention(nn.Module):
    """(batch, seq_len, hidden) → the same, each token seeing those before it: of the
    layer called *number*."""

    def __init__(self, spec: DecoderSpec, number: int) -> None:
        super().__init__()
        self.numerics = spec.numerics
        self.head_dim = spec.head_dim
        self.queries = spec.heads // spec.kv_heads  # query heads a key-value head
        width = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
        self.qkv = nn.Linear(spec.hidden, width, bias=spec.attention_bias)
        self.core = AttentionCore(spec.numerics.attention_dropout)
        self.projection = nn.Linear(
            spec.heads * spec.head_dim, spec.hidden, bias=spec.output_bias
        )
        self.query_norm = norm(spec, spec.head_dim) if spec.qk_norm else None
        self.key_norm = norm(spec, spec.head_dim) if spec.qk_norm else None
        self.rotary = spec.position == "rotary" and spec.numerics.turns(number)
        self.places: Tensor | None = None  # of the tokens in the sequence, from 0
        self._angles: tuple[Tensor, Tensor] | None = None

    def forward(self, stream: Tensor) -> Tensor:
        query, key, value = self.heads(self.qkv(stream))
        mixed = self.core(query, key, value)
        return self.projection(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def heads(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, heads, seq_len, head_dim) of queries, keys and values."""
        by_group = self.clipped(packed).unflatten(
            -1, (-1, self.queries + 2, self.head_dim)
        )
        # Split rather than sliced: backward then puts the three together in one copy.
        query, key, value = (
            one.flatten(2, 3).transpose(1, 2)
            for one in by_group.split((self.queries, 1, 1), dim=3)
        )
        if self.query_norm is None and not self.rotary:
            return query, key, value
        # New queries and keys are made; a copy of the values lets the packed tensor go.
        value = value.clone()
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotary:
            cosine, sine = self._turns(packed)
            query, key = (self._turned(one, cosine, sine) for one in (query, key))
        return query, key, value

    def clipped(self, packed: Tensor) -> Tensor:
        """Queries, keys and values, none larger than the model lets them be."""
        most = self.numerics.qkv_clip
        return packed if most is None else packed.clamp(-most, most)

    def _turned(self, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        made: Tensor = turned(heads, cosine, sine)
        if not self.numerics.head_rms_norm:
            return made
        epsilon = self.numerics.norm_epsilon
        return F.rms_norm(made, (self.head_dim,), eps=epsilon)

    def turn(
        self, query: Tensor, key: Tensor, *, first: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys, (batch, seq_len, heads, head_dim), turned by their places:
        from *first* on in the sequence."""
        if not self.rotary:
            return query, key
        length = query.shape[1]
        places = torch.arange(first, first + length)
        cosine, sine = angles(places, self.head_dim, query.device, self.numerics)
        made = [
            self._turned(one.transpose(1, 2), cosine, sine).transpose(1, 2)
            for one in (query, key)
        ]
        return made[0], made[1]

    def _turns(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        length = packed.shape[1]
        known = self._angles
        fits = known is not None and (
            len(known[0]) >= length
            and known[0].device == packed.device
            and (self.query_norm is not None or known[0].dtype is packed.dtype)
        )
        if known is None or not fits:
            places = torch.arange(length) if self.places is None else self.places
            where = packed.device
            known = angles(places, self.head_dim, where, self.numerics)
            if self.query_norm is None:  # whose output may have more bits
                known = known[0].to(packed.dtype), known[1].to(packed.dtype)
            self._angles = known
        return known[0][:length], known[1][:length]


class AttentionCore(nn.Module):
    """softmax(q kᵀ / √d) v under a causal mask; a module so that it can be redone.

    Of the softmax it drops *share* while training. Where tensor-parallel ranks draw all
    else alike, `part` is this rank among them: its heads have masks of their own.
    """

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.share = share
        self.part: int | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        grouped = query.shape[1] != key.shape[1]
        dropped = self.share if self.training else 0.0
        apart = dropped > 0 and self.part is not None
        with random_numbers_of(self.part or 0, query) if apart else nullcontext():
            mixed: Tensor = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=grouped, dropout_p=dropped
            )
        return mixed


@contextmanager
def random_numbers_of(part: int, tensor: Tensor) -> Iterator[None]:
    """Inside, random numbers on the device of *tensor* are those of *part* alone.

    Their seed is drawn from the generator that the ranks share, which goes on as if
    nothing else had been drawn: a recomputation that restores it gets the same masks
    (the states of Megatron-LM's `CudaRNGStatesTracker`, without a table of them).
    """
    seed = int(torch.randint(2**62, ()))
    devices = [tensor.device] if tensor.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(hash((seed, part)) % 2**63)
        yield
