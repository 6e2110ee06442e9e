"""Python that other frameworks are given, written and not read back.

NeMo           a Megatron-Bridge recipe: fields of `ConfigContainer`
               (megatron/bridge/training/config.py, release 0.3.1), and Megatron-Core's
               `TransformerConfig`, `DistributedDataParallelConfig`, `OptimizerConfig`
Colossal-AI    arguments of `HybridParallelPlugin`, `MoeHybridParallelPlugin` and
               `GeminiPlugin` (colossalai/booster/plugin, release 0.5)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from costmodel.formats.megatron import (
    CP_KINDS,
    STRATEGIES,
    cut_arguments,
    optimizer_arguments,
    recompute_arguments,
)
from costmodel.formats.megatron_shape import require_decoder, shape_arguments
from costmodel.formats.setup import Run
from costmodel.formats.text import Written, nodes_of
from profiles.errors import Unsupported

FRAMEWORK: Final = "megatron-bridge"
RECIPES: Final = {  # get_mixed_precision_config's names
    "fp16": "fp16_mixed",
    "bf16": "bf16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
NAMES: Final[
    Mapping[str, str | None]
] = {  # of arguments whose field is called otherwise
    "num-experts": "num_moe_experts",
    "norm-epsilon": "layernorm_epsilon",
    "decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
    "decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
    "use-rope-scaling": "rope_scaling",
    "max-position-embeddings": None,
    "group-query-attention": None,
    "disable-bias-linear": None,
    "untie-embeddings-and-output-weights": None,
    "swiglu": None,
    "squared-relu": None,
}
STYLES: Final = {"1f1b": "1f1b", "interleaved": "interleaved", "zb-v": "zbv"}
MODES: Final = {"ring": "ring_attn", "ulysses": "all_to_all"}


def write_nemo(run: Run) -> Written:
    """A recipe that pretrains with Megatron-Bridge."""
    fields = {
        "model": _model(run),
        "train": {
            "micro_batch_size": run.choice.micro_batch,
            "global_batch_size": run.job.global_batch,
            "train_iters": 1000,
        },
        "ddp": _ddp(run),
        "optimizer": _optimizer(run),
        "dataset": {"seq_length": run.job.seq_len},
    }
    lines = [
        f'"""{run.words}.',
        "",
        "A recipe of Megatron-Bridge (NeMo): torchrun … nemo_recipe.py.",
        "The dataset and the tokenizer are yours to set.",
        '"""',
        "",
        "import torch",
        "from megatron.bridge.models.gpt_provider import GPTModelProvider",
        "from megatron.bridge.recipes.common import _pretrain_common",
        "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
        "from megatron.bridge.training.gpt_step import forward_step",
        "from megatron.bridge.training import mixed_precision",
        "from megatron.bridge.training.pretrain import pretrain",
        "",
        "",
        "def recipe():",
        "    config = _pretrain_common()",
        "    config.model = GPTModelProvider(",
        *(f"        {name}={_value(one)}," for name, one in fields["model"].items()),
        "    )",
        *_settings(fields),
        *_mixed(run),
        "    return config",
        "",
        "",
        'if __name__ == "__main__":',
        "    pretrain(recipe(), forward_step)",
    ]
    return Written(
        files={"nemo_recipe.py": "\n".join(lines) + "\n"},
        command=("torchrun", *nodes_of(run), "nemo_recipe.py"),
    )


def _model(run: Run) -> dict[str, Any]:
    choice, spec = run.choice, require_decoder(run.job, "nemo")
    shape = shape_arguments(run.job, "nemo")
    found: dict[str, Any] = {}
    for key, value in shape.items():
        name = NAMES.get(key, key.replace("-", "_"))
        if name is not None:
            found[name] = value
    if "moe_layer_freq" in found:
        found["moe_layer_freq"] = _listed(str(found["moe_layer_freq"]))
    found |= {
        "gated_linear_unit": spec.gated_mlp,
        "add_bias_linear": spec.mlp_bias,
        "share_embeddings_and_output_weights": spec.tied_embeddings,
        "tensor_model_parallel_size": choice.tp,
        "pipeline_model_parallel_size": choice.pp,
        "context_parallel_size": choice.cp,
        "sequence_parallel": choice.sequence_parallel and choice.tp > 1,
        "attention_backend": None,
    }
    if not choice.flash_attention:
        raise Unsupported(
            "--export nemo: its recipes run fused attention; leave "
            "--no-flash-attention out"
        )
    activation = {
        "silu": "torch.nn.functional.silu",
        "gelu": "torch.nn.functional.gelu",
    }
    if spec.activation not in activation:
        raise Unsupported(f"--export nemo: {spec.activation} is not written here")
    found["activation_func"] = _Code(activation[spec.activation])
    if choice.pp > 1:
        found["pipeline_dtype"] = _Code(_dtype(choice.precision))
    if choice.virtual_stages > 1:
        found["virtual_pipeline_model_parallel_size"] = choice.virtual_stages
    if choice.cp > 1:
        found["cp_comm_type"] = CP_KINDS[choice.cp_kind]
    if run.job.has_experts:
        found["expert_model_parallel_size"] = choice.ep
        found["expert_tensor_parallel_size"] = choice.etp
    for key, value in {
        **cut_arguments(run),
        **recompute_arguments(run, "megatron"),
    }.items():
        called = NAMES.get(key) or key.replace("-", "_")
        found[called] = list(value) if isinstance(value, tuple) else value
    if choice.offload.activations:
        raise Unsupported(
            "--export nemo: activations that are offloaded are not written here; leave "
            "activations=… out of --offload"
        )
    return found


def _listed(text: str) -> Any:
    from costmodel.formats.megatron_shape import marks

    return int(text) if text.isdigit() else marks(text)


def _dtype(precision: str) -> str:
    known = {"fp16": "torch.float16", "fp32": "torch.float32", "tf32": "torch.float32"}
    return known.get(precision, "torch.bfloat16")


def _ddp(run: Run) -> dict[str, Any]:
    choice, hidden = run.choice, run.hides(FRAMEWORK)
    found: dict[str, Any] = {
        "use_distributed_optimizer": choice.zero > 0,
        "overlap_grad_reduce": "grad" in hidden,
        "overlap_param_gather": "param" in hidden and choice.zero > 0,
        "grad_reduce_in_fp32": choice.gradient_format == "fp32",
    }
    if choice.zero > 1:
        found["use_megatron_fsdp"] = True
        found["data_parallel_sharding_strategy"] = STRATEGIES[choice.zero]
    if run.shards_parts:
        found["num_distributed_optimizer_instances"] = choice.dp // choice.zero_group
    if run.options.bucket_mb is not None:
        found["bucket_size"] = round(run.options.bucket_mb * 1e6 / 4)
    return found


def _optimizer(run: Run) -> dict[str, Any]:
    name = run.job.optimizer
    moments = {}
    if name == "adamw-bf16-moments":
        name, half = "adamw", _Code("torch.bfloat16")
        moments = {"exp_avg_dtype": half, "exp_avg_sq_dtype": half}
        moments["use_precision_aware_optimizer"] = _Code("True")
    known = optimizer_arguments(name, "nemo")
    return {
        **{key.replace("-", "_"): value for key, value in known.items()},
        **moments,
        "optimizer_cpu_offload": run.choice.offload.optimizer,
        "use_distributed_optimizer": run.choice.zero > 0,
    }


def _settings(fields: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for section, values in fields.items():
        if section != "model":
            for name, value in values.items():
                yield f"    config.{section}.{name} = {_value(value)}"


def _mixed(run: Run) -> Iterator[str]:
    name = run.choice.precision
    if name in RECIPES:
        call = f'mixed_precision.get_mixed_precision_config("{RECIPES[name]}")'
        yield f"    config.mixed_precision = {call}"
        reduces = run.choice.gradient_format == "fp32"
        yield f"    config.mixed_precision.grad_reduce_in_fp32 = {reduces}"
    else:
        yield "    config.mixed_precision = None"
    hides = "tp" in run.hides(FRAMEWORK) and run.choice.tp > 1
    yield f"    config.comm_overlap = CommOverlapConfig(tp_comm_overlap={hides})"


class _Code(str):
    """Text that is Python, not a value."""

    __slots__ = ()


def _value(value: Any) -> str:
    if isinstance(value, _Code):
        return str(value)
    return json.dumps(value) if isinstance(value, str) else repr(value)


def write_colossalai(run: Run) -> Written:
    """The plugin that a training script hands to `Booster`."""
    require_decoder(run.job, "colossalai")
    name, arguments = _plugin(run)
    lines = [
        f'"""{run.words}.',
        "",
        "Booster(plugin=plugin()).",
        f"{run.micro_batches} micro-batches a step.{_checkpointing(run)}",
        '"""',
        "",
        f"from colossalai.booster.plugin import {name}",
        "",
        "",
        "def plugin():",
        f"    return {name}(",
        *(f"        {key}={_value(one)}," for key, one in arguments.items()),
        "    )",
    ]
    return Written(
        files={"colossalai_plugin.py": "\n".join(lines) + "\n"},
        command=("torchrun", *nodes_of(run), "train.py"),
    )


def _checkpointing(run: Run) -> str:
    if run.choice.recompute == "none":
        return ""
    return " Call model.gradient_checkpointing_enable() before boosting."


def _plugin(run: Run) -> tuple[str, dict[str, Any]]:
    choice = run.choice
    precision = choice.precision if choice.precision in ("fp16", "bf16") else "fp32"
    if choice.precision not in ("fp16", "bf16", "fp32"):
        raise Unsupported(
            f"--export colossalai: {choice.precision} is not written here; choose "
            "fp16, bf16 or fp32"
        )
    if choice.recompute not in ("none", "full") or choice.recompute_layers is not None:
        raise Unsupported(
            "--export colossalai: enable_gradient_checkpointing is of all layers, "
            "whole; choose --recompute none or full, without --recompute-layers"
        )
    if choice.zero == 3:
        return "GeminiPlugin", {
            "tp_size": choice.tp,
            "precision": precision,
            "offload_optim_frac": float(choice.offload.optimizer),
            "offload_param_frac": float(choice.offload.parameters),
            "enable_gradient_accumulation": run.micro_batches > 1,
            "enable_sequence_parallelism": choice.sequence_parallel and choice.tp > 1,
        }
    found: dict[str, Any] = {
        "tp_size": choice.tp,
        "pp_size": choice.pp,
        "zero_stage": choice.zero,
        "precision": precision,
        "microbatch_size": choice.micro_batch,
        "enable_flash_attention": choice.flash_attention,
        "cpu_offload": choice.offload.optimizer,
    }
    if len(set(run.counts)) > 1:
        raise Unsupported(
            "--export colossalai: stages of unlike layers are not written here; choose "
            "--pp that divides the layers"
        )
    if choice.pp > 1:
        found["pp_style"] = STYLES[choice.schedule]
        found["num_model_chunks"] = choice.virtual_stages
    if choice.cp > 1:
        found["sp_size"] = choice.cp
        found["enable_sequence_parallelism"] = True
        found["sequence_parallelism_mode"] = MODES[choice.cp_kind]
    elif choice.sequence_parallel and choice.tp > 1:
        found["enable_sequence_parallelism"] = True
        found["sequence_parallelism_mode"] = "split_gather"
    if choice.ep > 1:
        return "MoeHybridParallelPlugin", {**found, "ep_size": choice.ep}
    return "HybridParallelPlugin", found
