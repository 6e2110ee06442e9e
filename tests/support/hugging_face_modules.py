"""Small models of Hugging Face, by factories; without dropout."""

from __future__ import annotations

from typing import Any

SIZES = {"vocab_size": 512}


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    none = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(
        n_layer=4, n_embd=128, n_head=4, n_positions=64, **none, **ends, **SIZES
    )
    return GPT2LMHeadModel(config)


def _decoder(config: Any, **more: Any) -> Any:
    return config(
        num_hidden_layers=4,
        hidden_size=128,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        **more,
        **SIZES,
    )


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(_decoder(LlamaConfig))


def mixtral() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(_decoder(MixtralConfig, num_local_experts=4))


def bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    none = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    config = BertConfig(
        num_hidden_layers=4,
        hidden_size=128,
        intermediate_size=512,
        num_attention_heads=4,
        max_position_embeddings=64,
        **none,
        **SIZES,
    )
    return BertForMaskedLM(config)


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        num_layers=3,
        d_model=128,
        d_ff=512,
        num_heads=4,
        d_kv=32,
        n_positions=64,
        dropout_rate=0,
        decoder_start_token_id=0,
        **SIZES,
    )
    return T5ForConditionalGeneration(config)


def vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        num_hidden_layers=4,
        hidden_size=128,
        intermediate_size=512,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
        num_labels=10,
    )
    return ViTForImageClassification(config)


def gpt_175b() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=96, n_embd=12288, n_head=96, n_positions=2048, vocab_size=50257
    )
    return GPT2LMHeadModel(config)


def vit_base() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_labels=1000))


def bert_base() -> Any:
    from transformers import BertConfig, BertForPreTraining

    return BertForPreTraining(
        BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    )


def gpt_125m() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        activation_function="gelu", attn_pdrop=0, vocab_size=51200, n_positions=2048
    )
    return GPT2LMHeadModel(config)


def t5_small() -> Any:
    """With 512 tokens, and the decoder's 114."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        decoder_start_token_id=0, tie_word_embeddings=True, dropout_rate=0
    )
    given = {
        "input_ids": torch.randint(config.vocab_size, (1, 512)),
        "labels": torch.randint(config.vocab_size, (1, 114)),
    }
    return T5ForConditionalGeneration(config), given


def llama_1b() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=16,
            hidden_size=2048,
            intermediate_size=8192,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            vocab_size=128256,
            tie_word_embeddings=True,
        )
    )
