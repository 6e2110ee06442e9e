"""Hugging Face's causal language models as chains of units, found by their forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costmodel.layout.strategy import spell_out
from profiles.errors import Unsupported
from runtime.api.dry_run import DryRun
from runtime.api.module_chain import chain_of
from tests.runtime.ranks import on_ranks
from tests.support.small_layouts import FP32
from tests.support.training_cases import job

VOCAB, LENGTH = 64, 12
SIZES: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}
KNOWN: dict[str, dict[str, Any]] = {  # model_type of a config that `plan` reads
    "gpt2": {"n_layer": 4, "n_embd": 32, "n_head": 4},
    "llama": {"attention_bias": True},
    "mistral": {"sliding_window": 6},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 24},
    "qwen3_moe": EXPERTS,
    "deepseek_v2": {**LATENT, "q_lora_rank": None},
    "deepseek_v3": {**LATENT, "q_lora_rank": 16, "n_group": 2, "topk_group": 1},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 8, "sliding_window": 6},
    "llama4_text": {
        "num_local_experts": 4,
        "head_dim": 8,
        "intermediate_size_mlp": 48,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 8,
    },
    "dbrx": {
        "n_layers": 4,
        "d_model": 32,
        "n_heads": 4,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {
            "ffn_hidden_size": 48,
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "hidden_size": 32,
        },
    },
}
OTHERS: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "sliding_window": 6},
    "gemma3_text": {"head_dim": 8, "sliding_window": 6},
    "granite": {"embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "olmo": {},
    "olmo2": {},
    "olmoe": EXPERTS,
    "phi3": {},
    "starcoder2": {},
    "gpt_neox": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "cohere": {},
    "glm4": {"head_dim": 8},
}
FAMILIES = KNOWN | OTHERS


def model_of(family: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES | FAMILIES[family])
    made: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return made


def tokens() -> Tensor:
    source = torch.Generator().manual_seed(3)
    return torch.randint(3, VOCAB, (4, LENGTH + 1), generator=source)


def loss_of(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())


@pytest.mark.parametrize("family", FAMILIES)
def test_hugging_face_models_are_chains(family: str) -> None:
    model = model_of(family)
    inputs = tokens()[:, :-1]
    units = chain_of(model, None)
    made = DryRun(model, units).shapes(inputs)
    assert made == [(4, LENGTH, 32)] * 5 + [(4, LENGTH, VOCAB)]
    for unit in (model, *units):
        unit.eval()
    stream, wanted = inputs, model(inputs).logits
    for unit in units:
        stream = unit(stream)
    torch.testing.assert_close(stream, wanted)
    held = {id(one) for unit in units for one in unit.parameters()}
    assert held == {id(one) for one in model.parameters()}


def test_a_tied_head_is_not_trained_apart() -> None:
    model: Any = model_of("llama")
    model.lm_head.weight = model.model.embed_tokens.weight
    with pytest.raises(Unsupported, match="tie_word_embeddings=False"):
        chain_of(model, None)


def test_a_model_that_calls_its_layers_otherwise_is_refused() -> None:
    model: Any = model_of("llama")
    layers = model.model.layers
    model.model.layers = nn.ModuleList([*layers, layers[0]])
    model.config.num_hidden_layers = 5
    with pytest.raises(Unsupported, match="does not call its layers in turn"):
        chain_of(model, None)


def piped(rank: int, families: Sequence[str]) -> dict[str, tuple[float, float, float]]:
    """For each family the pipeline's first loss, the next one, and the model's own."""
    from runtime.api.entry import clip_gradients, parallelize

    asked = spell_out(replace(FP32, pp=2, micro_batch=2), job("gpt").graph, 4)
    found = {}
    for family in families:
        model = model_of(family).eval()
        inputs, wanted = tokens()[:, :-1], tokens()[:, 1:]
        own = float(loss_of(model(inputs).logits, wanted).detach())
        chain: Any = parallelize(model, asked, loss=loss_of)
        update = torch.optim.SGD(chain.parameters(), lr=0.1)
        first = float(chain.step(inputs, wanted))
        clip_gradients(chain, asked, 1.0)
        update.step()
        found[family] = (first, float(chain.step(inputs, wanted)), own)
    return found


def trains(families: Sequence[str]) -> None:
    pytest.importorskip("transformers")
    for seen in on_ranks(2, piped, families):
        for family, (first, second, own) in seen.items():
            assert first == pytest.approx(own, abs=1e-5), family
            assert second < first, family


@pytest.mark.slow
def test_pipelines_of_hugging_face_models_have_their_loss() -> None:
    trains(list(FAMILIES))
