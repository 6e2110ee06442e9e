"""Hugging Face's causal language models as chains of units."""

from __future__ import annotations

import pytest
import torch

from runtime.chain import chain_of, shapes, without_storage


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_hugging_face_models_are_chains(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if family == "gpt2":
        config = transformers.GPT2Config(
            n_layer=2, n_embd=32, n_head=2, vocab_size=64, tie_word_embeddings=False
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            num_hidden_layers=2,
            hidden_size=32,
            intermediate_size=48,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=64,
        )
        model = transformers.LlamaForCausalLM(config)
    model.eval()
    tokens = torch.randint(64, (2, 12))
    stream = tokens
    units = chain_of(model, None)
    for unit in units:
        stream = unit(stream)
    assert len(units) == 4
    torch.testing.assert_close(stream, model(tokens).logits)
    bare = without_storage(units)
    assert shapes(bare, tokens)[-1] == (2, 12, 64)
