"""Megatron-DeepSpeed: Megatron's arguments with a DeepSpeed configuration beside them.

Names are those of its megatron/arguments.py (commit 207b2d5a), which has Megatron-LM's
of 2023 and a group "zero" of its own.
"""

from __future__ import annotations

from typing import Any, Final

from costmodel.formats.deepspeed import (
    FILE,
    configuration,
    read_deepspeed,
)
from costmodel.formats.fields import Fields
from costmodel.formats.megatron import (
    optimizer_arguments,
    read_recompute,
    recompute_arguments,
    told,
)
from costmodel.formats.megatron_shape import Arguments, read_shape, shape_arguments
from costmodel.formats.setup import Foreign, Run, divided
from costmodel.formats.text import Written, array, json_text, rendezvous, script
from costmodel.layout import split_layers
from costmodel.options import Pins
from profiles.commandline import JobOptions, given
from profiles.errors import Contradiction, InvalidFile, Unsupported

FRAMEWORK: Final = "megatron-deepspeed"
DATA: Final[Arguments] = {
    "data-path": "DATA_PREFIX",
    "vocab-file": "gpt2-vocab.json",
    "merge-file": "gpt2-merges.txt",
    "data-impl": "mmap",
    "split": "99,1,0",
    "lr": 1.5e-4,
    "train-iters": 1000,
}


def write_megatron_deepspeed(run: Run) -> Written:
    """A script that runs its pretrain_gpt.py, and the configuration."""
    model = shape_arguments(run.job, FRAMEWORK, deepspeed=True)
    arrays = {
        "MODEL_ARGS": model,
        "PARALLEL_ARGS": _parallel(run),
        "TRAINING_ARGS": _training(run),
        "DATA_ARGS": DATA,
    }
    names = [f'"${{{name}[@]}}"' for name in arrays]
    body = [
        "export CUDA_DEVICE_MAX_CONNECTIONS=1",
        f"DISTRIBUTED_ARGS=({' '.join(rendezvous(run))})",
    ]
    body += [array(name, arguments) for name, arguments in arrays.items()]
    about = (
        "Megatron-DeepSpeed's pretrain_gpt.py (megatron/arguments.py), with "
        f"{FILE}\nDATA_ARGS are yours to change: none changes what a step costs."
    )
    launch = ("torchrun", '"${DISTRIBUTED_ARGS[@]}"', "pretrain_gpt.py")
    text = script(run, about, body, (*launch, *names))
    files = {
        "megatron_deepspeed.sh": text,
        FILE: json_text(configuration(run, FRAMEWORK)),
    }
    return Written(files=files, command=("bash", "megatron_deepspeed.sh"))


def _parallel(run: Run) -> Arguments:
    choice = run.choice
    found: Arguments = {
        "tensor-model-parallel-size": choice.tp,
        "pipeline-model-parallel-size": choice.pp,
    }
    if choice.pp == 1:
        found["no-pipeline-parallel"] = True
    elif len(set(run.counts)) > 1:
        raise Unsupported(
            f"--export {FRAMEWORK}: its pipeline shares layers out by "
            "partition_method='type:transformer', as evenly as can be, and stages of "
            f"{', '.join(map(str, run.counts))} layers it does not take from its "
            "arguments; choose --pp that divides the layers"
        )
    if choice.cp > 1:
        found["ds-sequence-parallel-size"] = choice.cp
    if run.job.has_experts:
        found["moe-expert-parallel-size"] = choice.ep
        if choice.etp > 1:
            found["enable-expert-tensor-parallelism"] = True
    if choice.etp not in (1, choice.tp):
        raise Unsupported(
            f"--export {FRAMEWORK}: experts are cut over 1 or all {choice.tp} ranks of "
            f"tensor parallelism (--enable-expert-tensor-parallelism), not {choice.etp}"
        )
    if choice.sequence_parallel and choice.tp > 1:
        found["sequence-parallel"] = True
    return {
        **found,
        "deepspeed": True,
        "deepspeed_config": FILE,
        "zero-stage": choice.zero,
    }


def _training(run: Run) -> Arguments:
    choice = run.choice
    found: Arguments = {
        "micro-batch-size": choice.micro_batch,
        "global-batch-size": run.job.global_batch,
        **optimizer_arguments(run.job.optimizer, FRAMEWORK),
    }
    if choice.precision in ("fp16", "bf16"):
        found[choice.precision] = True
    elif choice.precision != "fp32":
        raise Unsupported(
            f"--export {FRAMEWORK}: no argument says {choice.precision}; it has fp32, "
            "fp16 and bf16"
        )
    if choice.offload.optimizer:
        found["cpu-optimizer"] = True
    again = recompute_arguments(run, FRAMEWORK)
    found |= again
    if again.get("recompute-granularity") == "full":
        found["deepspeed-activation-checkpointing"] = True
    if choice.flash_attention:
        found["use-flash-attn-v2"] = True
    return found


def read_megatron_deepspeed(
    fields: Fields, world: int | None, configured: Fields | None
) -> Foreign:
    """What its arguments say, and the DeepSpeed configuration *configured* beside them.

    Raises InvalidFile and Contradiction.
    """
    shape, assumed = read_shape(fields, deepspeed=True)
    tp = fields.count("tensor-model-parallel-size", 1)
    pp = fields.count("pipeline-model-parallel-size", 1)
    cp = fields.count("ds-sequence-parallel-size", 1)
    pp = 1 if fields.switch("no-pipeline-parallel") else pp
    dp = divided(fields, world, tp, pp, cp)
    counts = split_layers(shape["layers"], pp)
    flash = [fields.switch(f"use-flash-attn{one}") for one in ("-v2", "-v1", "")]
    own = _own(fields, shape, (tp, pp, cp), counts)
    own |= {"dp": dp, "flash_attention": any(flash)}
    job = _job(fields, world, dp, assumed)
    beside = _beside(fields, configured, world, job, own)
    fields.skip("zero-stage", "cpu-optimizer")
    notes = told(fields)
    return Foreign(
        format=fields.what,
        framework=FRAMEWORK,
        job=JobOptions(**{**beside["job"], **job}),
        pins=Pins(**{**beside["pins"], **own}),
        shape=shape,
        lacks={
            "gpus": "the arguments do not say how many processes there are; give it",
            "global_batch": "--global-batch-size is missing; give it",
        },
        assumed=assumed,
        ignored=(*notes["ignored"], *beside["ignored"]),
        warnings=(*notes["warnings"], *beside["warnings"]),
    )


def _own(
    fields: Fields,
    shape: Any,
    degrees: tuple[int, int, int],
    counts: tuple[int, ...],
) -> dict[str, Any]:
    """Pins that the arguments are."""
    tp, pp, cp = degrees
    stages = ",".join(map(str, counts))
    found: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "micro_batch": fields.count("micro-batch-size", 1),
        "sequence_parallel": fields.switch("sequence-parallel") and tp > 1,
        **read_recompute(fields, stages),
    }
    if len(set(counts)) > 1:
        found["stage_layers"] = stages
    if cp > 1:
        found["cp_kind"] = "ulysses"
    wide = fields.switch("enable-expert-tensor-parallelism")
    spread = fields.count("moe-expert-parallel-size", 1)
    if "moe" in shape:
        found |= {"ep": spread, "etp": tp if wide else 1}
    if fields.switch("enable-zbh1-pipeline"):
        found["schedule"] = "zb-h1"
    return found


def _job(
    fields: Fields, world: int | None, dp: int | None, assumed: dict[str, Any]
) -> dict[str, Any]:
    micro = fields.integer("micro-batch-size")
    if micro is None:
        raise InvalidFile(f"{fields.what}: --micro-batch-size is missing; add it")
    batch = fields.integer("global-batch-size")
    if batch is None and dp is not None:
        batch = assumed["global_batch"] = micro * dp
    length = fields.integer("seq-length")
    if length is None:
        raise InvalidFile(f"{fields.what}: --seq-length is missing; add it")
    half, brain = fields.switch("fp16"), fields.switch("bf16")
    if half and brain:
        raise Contradiction(f"{fields.what}: --fp16 and --bf16 exclude each other")
    kind = fields.word("optimizer", ("adam", "sgd"), "adam")
    momentum = fields.number("sgd-momentum", 0.9)
    sgd = "sgd-momentum" if momentum else "sgd"
    return {
        "gpus": world,
        "seq_len": length,
        "global_batch": batch,
        "optimizer": "adamw" if kind == "adam" else sgd,
        "precision": "fp16" if half else "bf16" if brain else "fp32",
    }


def _beside(
    fields: Fields,
    configured: Fields | None,
    world: int | None,
    job: dict[str, Any],
    own: dict[str, Any],
) -> dict[str, Any]:
    """Options and notes of the DeepSpeed configuration; of the arguments alone where
    there is none. What both say must be the same."""
    level = fields.integer("zero-stage", zero=True)
    if configured is None:
        pins: dict[str, Any] = {"zero": level or 0}
        if fields.switch("cpu-optimizer"):
            pins |= {"offload": "optimizer", "offload_to": "cpu"}
        said = (
            "no DeepSpeed configuration is beside the arguments: ZeRO is --zero-stage"
        )
        return {"job": {}, "pins": pins, "ignored": (), "warnings": (said,)}
    configured.values["sequence_parallel_size"] = own["cp"]
    replicas = None if world is None else world // (own["tp"] * own["pp"])
    found = read_deepspeed(configured, replicas, FRAMEWORK)
    pins = {
        name: value
        for name, value in given(found.pins).items()
        if name not in ("tp", "pp", "cp", "dp", "recompute")
    }
    stated = {"zero": level, "micro_batch": own["micro_batch"]}
    for name, value in stated.items():
        if value is not None and pins.get(name, value) != value:
            raise Contradiction(
                f"{fields.what}: the arguments say {name.replace('_', '-')} {value} "
                f"and {configured.what} {pins[name]}; make them the same"
            )
    options = given(found.job)
    options = {key: options[key] for key in ("grad_dtype",) if key in options}
    batch = found.job.global_batch
    if batch not in (None, job["global_batch"]):
        raise Contradiction(
            f"{fields.what}: --global-batch-size {job['global_batch']} is not "
            f"train_batch_size {batch} of {configured.what}; make them the same"
        )
    return {
        "job": options,
        "pins": pins,
        "ignored": found.ignored,
        "warnings": found.warnings,
    }
