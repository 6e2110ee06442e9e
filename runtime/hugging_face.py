"""Hugging Face causal language models as chains: GPT-2 and Llama.

Each layer makes its own rotary angles, and attention is causal by itself: sequences
are whole, without padding or a mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from profiles.errors import Unsupported


class TokensAndPositions(nn.Module):
    """GPT-2's beginning."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = model.wte, model.wpe, model.drop

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.drop(self.wte(tokens) + self.wpe(places))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A layer of either, from hidden states to hidden states."""

    def __init__(self, layer: nn.Module, rotary: nn.Module | None) -> None:
        super().__init__()
        self.layer, self.rotary = layer, rotary

    def forward(self, stream: Tensor) -> Tensor:
        given: dict[str, Any] = {}
        if self.rotary is not None:
            places = torch.arange(stream.shape[1], device=stream.device).unsqueeze(0)
            given["position_embeddings"] = self.rotary(stream, places)
        made = self.layer(stream, **given)
        first: Tensor = made[0] if isinstance(made, tuple) else made
        return first


def units_of(model: nn.Module) -> list[nn.Module]:
    """The units of a GPT2LMHeadModel or LlamaForCausalLM; raises Unsupported."""
    whole: Any = model
    name = type(model).__name__
    if name not in ("GPT2LMHeadModel", "LlamaForCausalLM"):
        raise Unsupported(
            f"{name} is not known to be a chain; GPT2LMHeadModel and LlamaForCausalLM "
            "are: give the units of others, parallelize(module, layout, units=[…])"
        )
    if whole.get_input_embeddings().weight is whole.lm_head.weight:
        raise Unsupported(
            f"this {name} ties its head to its embedding, which a pipeline would train "
            "apart; make it with tie_word_embeddings=False, or plan with --pp 1"
        )
    if name == "GPT2LMHeadModel":
        inner = whole.transformer
        layers = [Block(layer, None) for layer in inner.h]
        return [
            TokensAndPositions(inner),
            *layers,
            nn.Sequential(inner.ln_f, whole.lm_head),
        ]
    inner = whole.model
    layers = [Block(layer, inner.rotary_emb) for layer in inner.layers]
    return [inner.embed_tokens, *layers, nn.Sequential(inner.norm, whole.lm_head)]
