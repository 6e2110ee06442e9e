"""`config_of`: the Hugging Face configuration of a spec, where a family computes it.

A candidate counts if reading it gives the spec again, so what is written is what the
reader of configurations says, and nothing that changes the loss is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from profiles.errors import MeshwrightError, Unsupported
from profiles.models import DecoderSpec, Job, Numerics, parse_config
from runtime.weights.folder import plain

Document = dict[str, Any]


def config_of(job: Job, spec: DecoderSpec) -> Document:
    """A `config.json` of *spec*, trained on the sequences of *job*.

    Raises Unsupported where no family that is written here computes it.
    """
    for candidate in _candidates(job, spec):
        try:
            read = parse_config(candidate, what="config.json", name=job.model).spec
        except MeshwrightError:
            continue
        if isinstance(read, DecoderSpec) and plain(read) == plain(spec):
            return candidate
    raise Unsupported(
        f"no Hugging Face family that is written here computes {job.model} "
        "(GPT-2, Llama, Mistral, Qwen2, Qwen3 and Mixtral are); leave --save-weights "
        "out, or start from --weights of its family"
    )


def _candidates(job: Job, spec: DecoderSpec) -> Iterator[Document]:
    yield _gpt2(spec)
    shared = _rotary(job, spec)
    bias = {"attention_bias": spec.output_bias, "mlp_bias": spec.mlp_bias}
    yield _named("llama", "Llama", {**shared, **bias})
    windowed = {"sliding_window": spec.window}
    yield _named("mistral", "Mistral", {**shared, **windowed})
    yield _named("qwen2", "Qwen2", {**shared, "use_sliding_window": False})
    qwen = {"attention_bias": spec.attention_bias, "use_sliding_window": False}
    yield _named("qwen3", "Qwen3", {**shared, **qwen})
    if spec.moe is not None:
        experts = {
            "num_local_experts": spec.moe.experts,
            "num_experts_per_tok": spec.moe.experts_per_token,
            "intermediate_size": spec.moe.expert_ffn_hidden,
        }
        yield _named("mixtral", "Mixtral", {**shared, **windowed, **experts})


def _named(kind: str, family: str, document: Document) -> Document:
    given = {"model_type": kind, "architectures": [f"{family}ForCausalLM"]}
    return {**given, **document}


def _gpt2(spec: DecoderSpec) -> Document:
    numerics = spec.numerics
    of_embedding = numerics.embedding_dropout
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": spec.layers,
        "n_embd": spec.hidden,
        "n_head": spec.heads,
        "n_inner": spec.ffn_hidden,
        "n_positions": spec.max_positions,
        "vocab_size": spec.vocab,
        "activation_function": _activation(spec, approximate="gelu_new"),
        "layer_norm_epsilon": numerics.norm_epsilon,
        "resid_pdrop": spec.dropout,
        "embd_pdrop": spec.dropout if of_embedding is None else of_embedding,
        "attn_pdrop": numerics.attention_dropout,
        "tie_word_embeddings": spec.tied_embeddings,
        **dict.fromkeys(("bos_token_id", "eos_token_id")),
    }


def _rotary(job: Job, spec: DecoderSpec) -> Document:
    numerics = spec.numerics
    return {
        "num_hidden_layers": spec.layers,
        "hidden_size": spec.hidden,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.ffn_hidden,
        "vocab_size": spec.vocab,
        "max_position_embeddings": job.seq_len,
        "hidden_act": _activation(spec, approximate="gelu_pytorch_tanh"),
        "rms_norm_eps": numerics.norm_epsilon,
        "rope_theta": numerics.rope_theta,
        "rope_scaling": _scaling(numerics),
        "attention_dropout": numerics.attention_dropout,
        "tie_word_embeddings": spec.tied_embeddings,
        **dict.fromkeys(("bos_token_id", "eos_token_id")),
    }


def _activation(spec: DecoderSpec, *, approximate: str) -> str:
    """As Hugging Face calls it; that of a gated MLP is its gate's."""
    plain_name = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}
    name = plain_name.get(spec.activation, spec.activation)
    inexact = name == "gelu" and not spec.numerics.exact_gelu
    return approximate if inexact else name


def _scaling(numerics: Numerics) -> Document | None:
    scaling = numerics.rope_scaling
    if scaling is None:
        return None
    found = {k: v for k, v in asdict(scaling).items() if k != "kind"}
    if scaling.kind == "linear":
        return {"rope_type": "linear", "factor": scaling.factor}
    found["original_max_position_embeddings"] = found.pop("original_positions")
    return {"rope_type": scaling.kind, **found}
