"""The norm that a spec names."""

from __future__ import annotations

from torch import nn

from profiles.models.spec import DecoderSpec

EPSILON = 1e-5


def norm(spec: DecoderSpec, width: int) -> nn.Module:
    """LayerNorm or RMSNorm over the last *width* elements."""
    if spec.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=EPSILON)
    return nn.LayerNorm(width, eps=EPSILON)
