"""Small Hugging Face models of every family that is trained, and their weights as ours.

Constants are away from the defaults of either side, so that one that is not read shows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from costmodel.layout.layout import Layout
from costmodel.layout.strategy import Uniform, spell_out
from profiles.models.configs import parse_config
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec
from runtime.optim.optimizer import Settings

BATCH, SEQ_LEN, SEED, DATA_SEED = 4, 32, 5, 3
ADAMW = Settings(lr=1e-3, clip=0.5)
FP32 = Uniform(precision="fp32", micro_batch=1)
DP = replace(FP32, dp=2, zero=0)
META = {"job": "a foreign model"}  # of the checkpoint that the weights lie in


def _config(kind: str, **more: Any) -> dict[str, Any]:
    return {
        "model_type": kind,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": 96,
        "max_position_embeddings": 64,
        "rms_norm_eps": 3e-3,
        "rope_theta": 300.0,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        **more,
    }


_GPT2 = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 32,
    "n_head": 4,
    "n_positions": 40,
    "n_inner": 48,
    "vocab_size": 96,
    "layer_norm_epsilon": 2e-3,
    "activation_function": "gelu",
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    **dict.fromkeys(("bos_token_id", "eos_token_id"), None),
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.5,
    "high_freq_factor": 5.0,
    "original_max_position_embeddings": 24,
}
_LINEAR = {"type": "linear", "factor": 2.5}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_SHARED = {"shared_expert_intermediate_size": 40}
_LLAMA4 = {
    "num_hidden_layers": 4,
    "head_dim": 8,
    "intermediate_size_mlp": 40,
    "num_local_experts": 4,
    "interleave_moe_layer_step": 2,
    "no_rope_layers": None,
}
_DBRX = {
    "model_type": "dbrx",
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": 64,
    "vocab_size": 96,
    "rope_theta": 300.0,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.6, "rope_theta": 300.0},
    "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "gpt2": {**_GPT2, "tie_word_embeddings": False},
    "gpt2-tied": {**_GPT2, "activation_function": "gelu_new"},
    "llama": _config("llama", head_dim=12, rope_scaling=_LLAMA3),
    "llama-tied": _config(
        "llama",
        rope_scaling=_LINEAR,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        hidden_act="gelu",
    ),
    "mistral": _config("mistral", sliding_window=SEQ_LEN, head_dim=8),
    "qwen2": _config("qwen2", use_sliding_window=False),
    "qwen2-tied": _config("qwen2", tie_word_embeddings=True, hidden_act="relu"),
    "qwen3": _config("qwen3", head_dim=12, attention_bias=True),
    "mixtral": _config("mixtral", num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": _config("qwen2_moe", **_EXPERTS, **_SHARED, norm_topk_prob=False),
    "qwen2_moe-normed": _config(
        "qwen2_moe",
        **_EXPERTS,
        **_SHARED,
        norm_topk_prob=True,
        qkv_bias=False,
        decoder_sparse_step=2,
    ),
    "qwen3_moe": _config("qwen3_moe", **_EXPERTS, norm_topk_prob=False, head_dim=12),
    "qwen3_moe-normed": _config(
        "qwen3_moe", **_EXPERTS, norm_topk_prob=True, mlp_only_layers=[0]
    ),
    "llama4": _config("llama4_text", **_LLAMA4, num_experts_per_tok=2),
    "llama4-plain": _config(
        "llama4_text",
        **{**_LLAMA4, "no_rope_layers": [1, 0, 1, 0]},
        num_experts_per_tok=1,
        use_qk_norm=False,
        attention_bias=True,
    ),
    "dbrx": _DBRX,
    "dbrx-normed": {
        **_DBRX,
        "ffn_config": {
            **_DBRX["ffn_config"],  # type: ignore[dict-item]
            "moe_normalize_expert_weights": 2.0,
            "ffn_act_fn": {"name": "gelu"},
        },
    },
}


# What is compared on several ranks; experts need the split of the sequence under tp.
LAYOUTS: Final[dict[str, Uniform]] = {
    "one rank": FP32,
    "dp 2": DP,
    "ZeRO-3": replace(DP, zero=3, zero_group=2),
    "tp 2": replace(FP32, tp=2, sequence_parallel=True),
    "pp 2": replace(FP32, pp=2),
    "tp 2 × pp 2": replace(FP32, tp=2, sequence_parallel=True, pp=2),
}


class Apart(NamedTuple):
    """A first step beside Hugging Face's: the loss in nats, the norm relative."""

    loss: float
    norm: float


def job_of(name: str) -> Job:
    """What `execute` is given of a configuration."""
    found = parse_config(CONFIGS[name], what="config.json", name=name)
    return Job(model=name, spec=found.spec, seq_len=SEQ_LEN, global_batch=BATCH)


def foreign(name: str) -> Any:
    """The Hugging Face model, with weights of which none is negligible."""
    from transformers import AutoConfig, AutoModelForCausalLM

    given = dict(CONFIGS[name])
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    torch.manual_seed(SEED)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            of_norm = parameter.dim() == 1 and bool((parameter == 1).all())
            about = 1.0 if of_norm else 0.0
            parameter.normal_(about, 0.15)
    return model.float().train()


def trained_foreign(name: str, steps: int) -> dict[str, Any]:
    """Losses, norms of gradients and first weights (as ours) of the foreign model."""
    model = foreign(name)
    start = {key: one.clone() for key, one in as_ours(name, model).items()}
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [one for one in parameters if one.dim() > 1]},
        {"params": [one for one in parameters if one.dim() <= 1], "weight_decay": 0},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=ADAMW.lr,
        betas=(ADAMW.beta1, ADAMW.beta2),
        weight_decay=ADAMW.weight_decay,
    )
    losses, norms = [], []
    for step in range(steps):
        batch = data().sequences(step * BATCH, BATCH)
        logits = model(batch[:, :-1]).logits
        targets = batch[:, 1:].flatten()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, ADAMW.clip)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"losses": losses, "norms": norms, "start": start}


def write_weights(name: str, weights: dict[str, Tensor], folder: Path) -> None:
    """A checkpoint of the whole model, from which any layout starts."""
    from runtime.checkpoint.checkpoint import save

    spec = job_of(name).spec
    assert isinstance(spec, DecoderSpec)
    save(folder, step=0, parts=[_whole(spec, weights)], optimizer=None, meta=META)


def logits_of(spec: DecoderSpec, weights: dict[str, Tensor]) -> Tensor:
    """Of the first batch under *spec*, which may compute something else than the
    configuration says."""
    with torch.no_grad():
        made: Tensor = _whole(spec, weights)(data().sequences(0, BATCH)[:, :-1])
    return made


def _whole(spec: DecoderSpec, weights: dict[str, Tensor]) -> Any:
    """The whole model in one process."""
    from runtime.models.decoder import Stage

    layers = map(str, range(spec.layers))
    whole = Stage(spec, ["embedding", *layers, "final_norm", "head"])
    whole.load_state_dict(weights)
    return whole


def first_steps(
    names: Sequence[str],
    ranks: int,
    folder: Path,
    among: Mapping[str, Uniform] = LAYOUTS,
) -> dict[tuple[str, str], Apart]:
    """By model and layout of *ranks* how far its first step is from Hugging Face's, on
    the rank that is farthest; *folder* takes the weights."""
    from tests.runtime.ranks import on_ranks

    layouts = {key: one for key, one in among.items() if one.gpus == ranks}
    keys = [(name, layout) for name in names for layout in layouts]
    theirs = {name: trained_foreign(name, 1) for name in names}
    for name, known in theirs.items():
        write_weights(name, known["start"], folder / name)
    asked = [(name, layouts[layout]) for name, layout in keys]
    by_rank = on_ranks(ranks, trained_ours, asked, 1, str(folder))
    found = {}
    for (name, layout), *seen in zip(keys, *by_rank, strict=True):
        loss, norm = (theirs[name][one][0] for one in ("losses", "norms"))
        found[name, layout] = Apart(
            loss=max(abs(one["losses"][0] - loss) for one in seen),
            norm=max(abs(one["norms"][0] / norm - 1) for one in seen),
        )
    return found


def trained_ours(
    rank: int, asked: Sequence[tuple[str, Uniform]], steps: int, folder: str
) -> list[dict[str, Any]]:
    """What this rank saw of each family and choice, from the weights in *folder*."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel("ERROR")
    return [
        _trained(job_of(name), choice, steps, Path(folder, name))
        for name, choice in asked
    ]


def _trained(job: Job, choice: Uniform, steps: int, folder: Path) -> dict[str, Any]:
    trainer = trainer_of(job, spell_out(choice, job.graph, BATCH), folder)
    seen = [trainer.step(number) for number in range(steps)]
    return {
        "losses": [one.loss for one in seen],
        "norms": [one.gradient_norm for one in seen],
    }


def trainer_of(job: Job, layout: Layout, folder: Path | str | None = None) -> Any:
    """This rank's trainer, from the weights in *folder* if there is one."""
    from runtime.checkpoint.checkpoint import load
    from runtime.train.build import Setup
    from runtime.train.trainer import Trainer

    trainer = Trainer(
        job,
        layout,
        data(),
        settings=ADAMW,
        setup=Setup(seed=SEED, device=torch.device("cpu")),
    )
    if folder is not None:
        parts = [held.module for held in trainer.stages]
        load(Path(folder), parts=parts, optimizer=None, meta=META)
    return trainer


def data() -> Any:
    """What both are trained with."""
    from runtime.data.sources import source

    return source("synthetic", vocab=96, seq_len=SEQ_LEN, seed=DATA_SEED)


def as_ours(name: str, model: Any) -> dict[str, Tensor]:
    """The foreign model's weights under our names, laid out as ours: as `execute
    --weights` reads what it saves."""
    from runtime.weights.folder import WeightsFolder

    spec = job_of(name).spec
    assert isinstance(spec, DecoderSpec)
    with TemporaryDirectory() as where:
        saved(model, Path(where))
        folder = WeightsFolder.read(Path(where))
        folder.require_of(spec)
        return {
            ours: one.clone()
            for bond in folder.expected.bonds
            for ours, one in zip(
                bond.ours, bond.join(folder.tensors(bond.theirs)), strict=True
            )
        }


def saved(model: Any, folder: Path) -> None:
    """The foreign model as `transformers` writes it, without its progress bars."""
    from transformers.utils import logging as theirs

    theirs.disable_progress_bar()
    model.save_pretrained(folder)
