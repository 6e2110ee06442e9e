"""Jobs so small that all they need is measured in seconds."""

from __future__ import annotations

from dataclasses import replace

from profiles.models.job import Job
from profiles.models.spec import DecoderSpec, MoeSpec

GPT = DecoderSpec(
    layers=2,
    hidden=32,
    heads=4,
    kv_heads=4,
    head_dim=8,
    ffn_hidden=64,
    vocab=80,
    max_positions=32,
)
LLAMA = replace(
    GPT,
    kv_heads=2,
    gated_mlp=True,
    activation="silu",
    norm="rmsnorm",
    qk_norm=True,
    position="rotary",
    max_positions=0,
    attention_bias=False,
    output_bias=False,
    mlp_bias=False,
    tied_embeddings=False,
)
DROPPING = replace(GPT, dropout=0.1, activation="relu")
MIXTURE = replace(
    LLAMA,
    qk_norm=False,
    moe=MoeSpec(
        experts=4,
        experts_per_token=2,
        expert_ffn_hidden=32,
        shared_experts=1,
        shared_ffn_hidden=32,
        first_layer=1,
    ),
)
BIASED = replace(GPT, moe=MoeSpec(experts=2, experts_per_token=1, expert_ffn_hidden=64))


def job(spec: DecoderSpec = GPT, *, global_batch: int = 2) -> Job:
    return Job(model="small", spec=spec, seq_len=16, global_batch=global_batch)
