"""The norm that a spec names."""

from __future__ import annotations

from torch import nn

from profiles.models.spec import DecoderSpec


def norm(spec: DecoderSpec, width: int) -> nn.Module:
    """LayerNorm or RMSNorm over the last *width* elements."""
    if spec.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=spec.numerics.norm_epsilon)
    return nn.LayerNorm(width, eps=spec.numerics.norm_epsilon, bias=spec.norm_bias)
