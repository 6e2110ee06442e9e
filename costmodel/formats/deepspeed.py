"""DeepSpeed: its configuration in JSON, in both directions.

Keys are those of deepspeed/runtime/constants.py and config.py, and of
deepspeed/runtime/zero/config.py and offload_config.py (release 0.19.8). Tensor
parallelism is `tensor_parallel.autotp_size`, context parallelism (Ulysses)
`sequence_parallel_size`, the pipeline's stages `pipeline.stages`; experts are spread by
the model's own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from costmodel.formats.fields import Fields
from costmodel.formats.setup import Foreign, Run, divided, overlap_of
from costmodel.formats.text import Written, json_text, nodes_of
from costmodel.layout import NOTHING, Offload
from costmodel.options import Pins
from profiles.commandline import JobOptions
from profiles.errors import Contradiction, Unsupported
from profiles.models import DecoderSpec, parameters

FRAMEWORK: Final = "deepspeed"
FILE: Final = "ds_config.json"
OPTIMIZERS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "adamw": ("AdamW", {"lr": 1e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}),
    "adam": ("Adam", {"lr": 1e-4, "adam_w_mode": False}),
    "lamb": ("Lamb", {"lr": 1e-4}),
    "sgd-momentum": ("SGD", {"lr": 1e-2, "momentum": 0.9}),
    "sgd": ("SGD", {"lr": 1e-2}),
}
FORMATS: Final = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}
AUTOCAST: Final = {"amp-fp16": "float16", "amp-bf16": "bfloat16"}
BUCKET: Final = 500_000_000  # elements, DeepSpeed's default
FP32_BYTES: Final = 4


def write_deepspeed(run: Run) -> Written:
    """The configuration, and a line that starts a training script with it."""
    if run.choice.ep > 1:
        raise Unsupported(
            f"--export deepspeed: ep {run.choice.ep} is an argument of "
            "deepspeed.moe.layer.MoE in the model's code, not of its configuration; "
            "export megatron-deepspeed, or plan with --ep 1"
        )
    script = ("train.py", "--deepspeed", "--deepspeed_config", FILE)
    own = ("deepspeed", "--num_nodes", str(run.nodes), "--num_gpus", str(run.per_node))
    head = f"#!/bin/bash\n# {run.words}\n# Run it on one node; a hostfile names all.\n"
    return Written(
        files={
            FILE: json_text(configuration(run)),
            "deepspeed.sh": f"{head}{' '.join((*own, *script))}\n",
        },
        command=("torchrun", *nodes_of(run), *script),
    )


def configuration(run: Run, target: str = "deepspeed") -> dict[str, Any]:
    """The whole file."""
    choice = run.choice
    batches = {
        "train_batch_size": run.job.global_batch,
        "train_micro_batch_size_per_gpu": choice.micro_batch,
        "gradient_accumulation_steps": run.micro_batches,
    }
    found: dict[str, Any] = {**batches, **_optimizer(run, target)}
    found |= _precision(run, target)
    found["zero_optimization"] = _zero(run, target)
    if target == "deepspeed" and choice.tp > 1:
        found["tensor_parallel"] = {"autotp_size": choice.tp}
    if target == "deepspeed" and choice.cp > 1:
        found["sequence_parallel_size"] = choice.cp
    if target == "deepspeed":
        found |= _pipeline(run)
    return {**found, "gradient_clipping": 1.0}


def _optimizer(run: Run, target: str) -> dict[str, Any]:
    name = run.job.optimizer
    if name not in OPTIMIZERS:
        raise Unsupported(
            f"--export {target}: DeepSpeed has no optimizer {name}; it has "
            f"{', '.join(OPTIMIZERS)}"
        )
    kind, values = OPTIMIZERS[name]
    return {"optimizer": {"type": kind, "params": dict(values)}}


def _precision(run: Run, target: str) -> dict[str, Any]:
    name, gradients = run.choice.precision, run.choice.gradient_format
    if name == "tf32":
        raise Unsupported(
            f"--export {target}: TF32 is a switch of PyTorch "
            "(torch.backends.cuda.matmul.allow_tf32), not of this file; choose "
            "--precision fp32 or bf16"
        )
    if name in AUTOCAST:
        return {"torch_autocast": {"enabled": True, "dtype": AUTOCAST[name]}}
    if name == "fp32":
        return {}
    if not run.says_gradients(FRAMEWORK):
        return {name: {"enabled": True}}
    if gradients not in FORMATS:
        raise Unsupported(
            f"--export {target}: gradients are accumulated in one format "
            f"(data_types.grad_accum_dtype), not in {gradients}; choose --grad-dtype "
            "fp32"
        )
    kept = {"data_types": {"grad_accum_dtype": FORMATS[gradients]}}
    return {name: {"enabled": True}, **kept}


def _zero(run: Run, framework: str) -> dict[str, Any]:
    choice, hidden = run.choice, run.hides(framework)
    found: dict[str, Any] = {
        "stage": choice.zero,
        "overlap_comm": "grad" in hidden,
        "contiguous_gradients": True,
    }
    if run.options.bucket_mb is not None:
        size = round(run.options.bucket_mb * 1e6 / FP32_BYTES)
        found |= {"reduce_bucket_size": size, "allgather_bucket_size": size}
    if run.shards_parts:
        found["mics_shard_size"] = choice.zero_group * choice.cp
    offload = choice.offload
    where = {"device": offload.tier, "pin_memory": True}
    if offload.tier == "nvme":
        where["nvme_path"] = "/local_nvme"
    if offload.optimizer:
        found["offload_optimizer"] = dict(where)
    if offload.parameters:
        found["offload_param"] = dict(where)
    if choice.zero_plus.anything:
        found |= choice.zero_plus.document()
    return found


def _pipeline(run: Run) -> dict[str, Any]:
    choice, found = run.choice, dict[str, Any]()
    again = _interval(run)
    if choice.pp > 1:
        if len(set(run.counts)) > 1:
            raise Unsupported(
                "--export deepspeed: stages of unlike layers are PipelineModule's "
                "partition_method, an argument of the model's code; choose --pp that "
                f"divides the {sum(run.counts)} layers"
            )
        found["pipeline"] = {
            "stages": choice.pp,
            "partition": "uniform",
            "activation_checkpoint_interval": again,
        }
    elif again > 1:
        raise Unsupported(
            f"--export deepspeed: segments of {again} layers are "
            "PipelineModule's (pipeline.activation_checkpoint_interval); without a "
            "pipeline choose --recompute full or none"
        )
    elif again:
        found["activation_checkpointing"] = {
            "partition_activations": False,
            "number_checkpoints": run.counts[0],
        }
    return found


def _interval(run: Run) -> int:
    """Layers that are recomputed together; 0 where none are."""
    from costmodel.formats.megatron import segment_length

    name = run.choice.recompute
    length = {"none": 0, "full": 1}.get(name)
    if name == "sqrt":
        length = segment_length(run)
    if length is None or run.choice.recompute_layers is not None:
        raise Unsupported(
            "--export deepspeed: activation_checkpoint_interval is one number for all "
            "layers; choose --recompute full or none, without --recompute-layers"
        )
    return length


def read_deepspeed(
    fields: Fields, world: int | None, framework: str = FRAMEWORK
) -> Foreign:
    """What a configuration says; raises InvalidFile and Contradiction."""
    zero = fields.section("zero_optimization")
    parallel = fields.section("tensor_parallel")
    tp = _number(parallel, "autotp_size") or 1
    cp = _number(fields, "sequence_parallel_size") or 1
    pipeline = fields.section("pipeline")
    pp = _number(pipeline, "stages") or 1
    dp = divided(fields, world, tp, pp, cp)
    warnings: list[str] = []
    assumed: dict[str, Any] = {}
    pins = {
        **_read_zero(zero, dp, cp),
        **_read_recompute(fields, pipeline, warnings),
        **_read_buckets(zero, framework),
        **({"sequence_parallel": False} if tp > 1 else {}),  # AutoTP's
    }
    batches = _read_batches(fields, dp, assumed)
    for name, part in (("zero_optimization", zero), ("pipeline", pipeline)):
        warnings += [
            f"{name}.{one} is not priced" for one in part.left() if one not in QUIET
        ]
    precision = _read_precision(fields)
    assumed |= {**fields.defaults(optimizer="adamw"), **zero.defaults(stage=0)}
    optimizer = _read_optimizer(fields)
    left = list(fields.left())
    return Foreign(
        format=fields.what,
        framework=framework,
        job=JobOptions(
            gpus=world,
            global_batch=batches.pop("global_batch"),
            optimizer=optimizer,
            **precision,
        ),
        pins=Pins(tp=tp, pp=pp, cp=cp, dp=dp, **_ulysses(cp), **batches, **pins),
        lacks={
            "gpus": "a DeepSpeed configuration does not say on how many; give it",
            "micro_batch": "train_micro_batch_size_per_gpu is not there, or auto; give "
            "it",
            "global_batch": "train_batch_size is not there, or auto; give it",
        },
        assumed=assumed,
        ignored=tuple(name for name in left if name in QUIET),
        warnings=(
            *warnings,
            *(f"{name} is not priced" for name in left if name not in QUIET),
        ),
    )


# What is logged, saved, learned, or means nothing to the price of a step.
QUIET: Final = frozenset(
    (
        *("scheduler", "gradient_clipping", "steps_per_print", "wall_clock_breakdown"),
        *("prescale_gradients", "gradient_predivide_factor", "dump_state", "flops"),
        *(
            "tensorboard",
            "wandb",
            "csv_monitor",
            "comet",
            "flops_profiler",
            "checkpoint",
        ),
        *(
            "zero_allow_untested_optimizer",
            "zero_force_ds_cpu_optimizer",
            "comms_logger",
        ),
        *(
            "dataloader_drop_last",
            "memory_breakdown",
            "seed_layers",
            "log_level",
            "aio",
        ),
        *("stage3_gather_16bit_weights_on_model_save", "load_from_fp32_weights"),
        *(
            "stage3_gather_fp16_weights_on_model_save",
            "elastic_checkpoint",
            "partition",
        ),
        *("contiguous_gradients", "round_robin_gradients", "ignore_unused_parameters"),
        *(
            "sub_group_size",
            "stage3_prefetch_bucket_size",
            "stage3_max_live_parameters",
        ),
        *("stage3_param_persistence_threshold", "stage3_max_reuse_distance"),
        *(
            "stage3_model_persistence_threshold",
            "reduce_scatter",
            "allgather_partitions",
        ),
        *("nebula", "autotuning", "zero_hpz_partition_size", "communication_data_type"),
        *("optimizer", "fp16", "bf16", "data_types", "torch_autocast", "$schema"),
    )
)


def _number(fields: Fields, name: str) -> int | None:
    """A whole number; None where it is left out or `auto`."""
    if fields.values.get(name) == "auto":
        fields.skip(name)
        return None
    return fields.integer(name)


def _ulysses(cp: int) -> dict[str, Any]:
    return {"cp_kind": "ulysses"} if cp > 1 else {}


def _read_batches(
    fields: Fields, dp: int | None, assumed: dict[str, Any]
) -> dict[str, Any]:
    """Of global batch, micro-batch and accumulation two give the third."""
    batch = _number(fields, "train_batch_size")
    micro = _number(fields, "train_micro_batch_size_per_gpu")
    steps = _number(fields, "gradient_accumulation_steps")
    if batch is None and micro is not None and dp is not None:
        if steps is None:
            steps = assumed["gradient_accumulation_steps"] = 1
        batch = micro * steps * dp
    elif micro is None and batch is not None and dp is not None:
        if steps is None:
            steps = assumed["gradient_accumulation_steps"] = 1
        micro, rest = divmod(batch, steps * dp)
        if rest or not micro:
            raise Contradiction(
                f"{fields.what}: train_batch_size {batch} is no multiple of "
                f"{steps} steps × {dp} data-parallel ranks"
            )
    if batch and micro and dp and batch % (micro * dp):
        steps = steps or 1
    if batch and micro and steps and dp and batch != micro * steps * dp:
        raise Contradiction(
            f"{fields.what}: train_batch_size {batch} is not micro-batches of {micro} "
            f"× {steps} steps × {dp} data-parallel ranks; DeepSpeed refuses it too (of "
            "Megatron-DeepSpeed give the script, which says how wide tp and pp are)"
        )
    return {"global_batch": batch, "micro_batch": micro}


def _read_zero(zero: Fields, dp: int | None, cp: int) -> dict[str, Any]:
    level = zero.integer("stage", 0, zero=True) or 0
    if level > 3:
        raise zero.wrong("stage", "one of 0, 1, 2, 3")
    found: dict[str, Any] = {"zero": level}
    group = _number(zero, "mics_shard_size")
    if group is not None and dp is not None:
        if group % cp or dp % (group // cp):
            raise zero.wrong("mics_shard_size", f"a divisor of the {dp} × {cp} ranks")
        found["zero_group"] = group // cp
    parts, tiers = [], set()
    for what, key in (
        ("optimizer", "offload_optimizer"),
        ("parameters", "offload_param"),
    ):
        section = zero.section(key)
        device = section.word("device", ("none", "cpu", "nvme"), "none")
        if device != "none":
            parts.append(what)
            tiers.add(device)
    if zero.switch("cpu_offload"):  # of old
        parts, tiers = ["optimizer"], {"cpu"}
    if len(tiers) > 1:
        raise Unsupported(
            f"{zero.what}: optimizer and parameters on unlike places are not priced; "
            "choose cpu or nvme for both"
        )
    if parts:
        found |= {"offload": ",".join(parts), "offload_to": tiers.pop()}
    size = zero.integer("zero_hpz_partition_size", 1, zero=True)
    if zero.switch("zero_quantized_weights"):
        found["zero_quantized_weights"] = True
    if zero.switch("zero_quantized_gradients"):
        found["zero_quantized_gradients"] = True
    if size and size > 1:
        found["zero_hpz_partition_size"] = size
    return found


def _read_recompute(
    fields: Fields, pipeline: Fields, warnings: list[str]
) -> dict[str, Any]:
    section = fields.section("activation_checkpointing")
    again = pipeline.integer("activation_checkpoint_interval", 0, zero=True)
    saved = section.integer("number_checkpoints")
    if again and again > 1:
        warnings.append(
            f"segments of {again} layers that are recomputed together are priced as "
            "segments as long as the root of a stage's layers"
        )
        return {"recompute": "sqrt"}
    if again or saved:
        if section.switch("cpu_checkpointing"):
            warnings.append("activation_checkpointing.cpu_checkpointing is not priced")
        return {"recompute": "full"}
    if section.values:
        warnings.append(
            "whether layers are recomputed the model's code says, not "
            "activation_checkpointing; --recompute full prices that they are"
        )
    return {}


def _read_buckets(zero: Fields, framework: str) -> dict[str, Any]:
    size = _number(zero, "reduce_bucket_size")
    zero.skip("allgather_bucket_size")
    overlap = zero.raw("overlap_comm")
    found: dict[str, Any] = {}
    if isinstance(overlap, bool):
        found["overlap"] = overlap_of(framework, grad=overlap)
    if size is not None and size != BUCKET:
        found["bucket_mb"] = size * FP32_BYTES / 1e6
    return found


def _read_precision(fields: Fields) -> dict[str, Any]:
    cast = fields.section("torch_autocast")
    if cast.switch("enabled"):
        known = {value: key for key, value in AUTOCAST.items()}
        return {"precision": known[cast.word("dtype", known, "bfloat16") or "bfloat16"]}
    names = [
        name
        for name in ("fp16", "bf16")
        if (part := fields.section(name)).values.get("enabled") != "auto"
        and part.switch("enabled")
    ]
    if len(names) > 1:
        raise Contradiction(f"{fields.what}: fp16 and bf16 exclude each other")
    if not names:
        auto = [
            name
            for name in ("fp16", "bf16")
            if fields.section(name).values.get("enabled") == "auto"
        ]
        return {} if auto else {"precision": "fp32"}
    kept = fields.section("data_types").word("grad_accum_dtype", FORMATS)
    if kept is None:
        return {"precision": names[0]}
    return {"precision": names[0], "grad_dtype": kept}


def _read_optimizer(fields: Fields) -> str | None:
    section = fields.section("optimizer")
    kind = section.word("type")
    values = section.section("params")
    if kind is None or kind == "auto":
        return None
    name = kind.lower()
    if name == "sgd":
        return "sgd-momentum" if values.values.get("momentum") else "sgd"
    if name in ("adam", "fusedadam") and values.values.get("adam_w_mode") is False:
        return "adam"
    known = {"adam": "adamw", "fusedadam": "adamw", "adamw": "adamw", "lamb": "lamb"}
    known |= {
        "deepspeedcpuadam": "adamw",
        "onebitadam": "adamw",
        "zerooneadam": "adamw",
    }
    if name not in known:
        raise section.wrong("type", "one of AdamW, Adam, Lamb, SGD")
    return known[name]


def needed_by_deepspeed(run: Run) -> dict[str, int] | None:
    """What DeepSpeed's own estimators say of *run*: `model_states_bytes` of its model;
    None where they say nothing."""
    choice, spec = run.said, run.job.spec
    if choice is None:
        return None
    alone = choice.tp * choice.pp * choice.cp == 1 and not run.shards_parts
    if not alone or choice.zero < 2 or not isinstance(spec, DecoderSpec):
        return None
    total, largest = parameters(spec).total, largest_module(spec)
    found = model_states_bytes(
        total, largest, zero=choice.zero, gpus=run.gpus, offload=choice.offload
    )
    return {"parameters": total, "largest_module": largest, "bytes_per_gpu": found}


def model_states_bytes(
    total: int, largest: int, *, zero: int, gpus: int, offload: Offload = NOTHING
) -> int:
    """Bytes of one GPU for the model states of *total* parameters, 16-bit training, by
    `estimate_zero2_model_states_mem_needs` (deepspeed/runtime/zero/stage_1_and_2.py)
    and `estimate_zero3_model_states_mem_needs` (stage3.py):

        ZeRO-2    2 P + 18 P / N        2 P with the optimizer on the host
        ZeRO-3    4 L + 18 P / N        4 L + 2 P / N; 4 L with the parameters too

    >>> model_states_bytes(1_000_000, 250_000, zero=3, gpus=8)
    3250000
    """
    if zero == 2:
        return 2 * total + (0 if offload.optimizer else int(18 * total / gpus))
    if offload.optimizer:
        return 4 * largest + (0 if offload.parameters else int(2 * total / gpus))
    return 4 * largest + int(18 * total / gpus)


def largest_module(spec: DecoderSpec) -> int:
    """Parameters of the largest module that holds some itself: a table or a linear
    layer, as Hugging Face's models have them."""
    wide = spec.heads * spec.head_dim
    widths = [spec.ffn_hidden] if spec.has_dense_mlp else []
    if spec.moe is not None:
        widths += [spec.moe.expert_ffn_hidden, spec.moe.shared_ffn_hidden]
    linear = [spec.hidden * one + spec.mlp_bias * one for one in widths]
    return max(spec.vocab * spec.hidden, spec.hidden * (wide + 1), *linear)
