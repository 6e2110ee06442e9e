"""The loss of a language model: mean cross-entropy over the tokens, in fp32."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class CrossEntropy(nn.Module):
    """Logits (batch, seq_len, vocab) and targets (batch, seq_len) → nats a token."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
