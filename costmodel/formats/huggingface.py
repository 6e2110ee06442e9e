"""Hugging Face: accelerate's configuration, and the Trainer's arguments.

accelerate   keys of `ClusterConfig` (accelerate/commands/config/config_args.py) and of
             the FSDP, DeepSpeed and Megatron-LM questions of
             accelerate/commands/config/cluster.py, release 1.15
Trainer      fields of `TrainingArguments` (transformers/training_args.py, release
             5.24); what DeepSpeed's file and they both say is `auto` in the former
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from costmodel.formats.deepspeed import FILE, configuration, read_deepspeed
from costmodel.formats.fields import Fields
from costmodel.formats.setup import Foreign, Run, divided
from costmodel.formats.text import Written, json_text, nodes_of, yaml_text
from costmodel.options import Pins
from costmodel.support import capabilities
from profiles.commandline import JobOptions, given
from profiles.errors import Contradiction, Unsupported
from profiles.models import ModuleSpec

ACCELERATE: Final = "accelerate.yaml"
TRAINER: Final = "training_arguments.json"
FSDP, DEEPSPEED, MEGATRON, DDP = "FSDP", "DEEPSPEED", "MEGATRON_LM", "MULTI_GPU"
# Which of their engines is asked, in this order, and whose features it has.
ENGINES: Final = {FSDP: "fsdp2", DEEPSPEED: "deepspeed", MEGATRON: "megatron-lm"}
OPTIMIZERS: Final = {"adamw": "adamw_torch_fused", "sgd": "sgd"}
Beside = Callable[[str], Fields | None]  # a file in the same folder


def engine(run: Run, target: str, names: Mapping[str, str] = ENGINES) -> str:
    """The first engine that can do it; raises Unsupported with every reason."""
    reasons = []
    for name, framework in names.items():
        lacks = capabilities(framework).lacks(run.choice, run.job)
        if name == FSDP and run.choice.zero < 2 and not lacks:  # of one rank
            lacks.append(f"{framework} has no ZeRO-{run.choice.zero}")
        if name == MEGATRON and run.choice.zero > 1 and not lacks:  # likewise
            lacks.append(f"{framework} has no ZeRO-{run.choice.zero}")
        if name == DEEPSPEED and run.choice.ep > 1:
            lacks.append("deepspeed spreads experts in the model's code")
        if not lacks:
            choice = run.choice
            alone = choice.gpus == choice.dp and not choice.offload.anything
            if name == DEEPSPEED and choice.zero == 0 and alone:
                return DDP
            return name
        reasons.append(f"{name}: {'; '.join(lacks)}")
    raise Unsupported(
        f"--export {target}: none of its engines does it. {'. '.join(reasons)}"
    )


def write_accelerate(run: Run) -> Written:
    """`accelerate launch --config_file accelerate.yaml`; and DeepSpeed's file."""
    kind = engine(run, "accelerate")
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": _mixed(run, kind, "accelerate"),
        "num_machines": run.nodes,
        "num_processes": run.gpus,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    files = {}
    if kind == FSDP:
        found["fsdp_config"] = _fsdp(run)
        if run.shards_parts:
            found["parallelism_config"] = _hybrid(run)
    elif kind == DEEPSPEED:
        found["deepspeed_config"] = {
            "deepspeed_config_file": FILE,
            "zero3_init_flag": run.choice.zero == 3,
        }
        del found["mixed_precision"]  # the file says it
        files[FILE] = json_text(configuration(run))
    elif kind == MEGATRON:
        found["megatron_lm_config"] = _megatron(run)
    elif run.choice.recompute != "none":
        raise Unsupported(
            "--export accelerate: with DDP the training script recomputes layers, not "
            "this file; choose --recompute none, or a ZeRO level"
        )
    sizes = (
        f"--per_device_train_batch_size {run.choice.micro_batch} "
        f"--gradient_accumulation_steps {run.micro_batches}"
    )
    about = (
        f"{run.words}\naccelerate launch --config_file {ACCELERATE} train.py {sizes}\n"
        f"The batch, sequences of {run.job.seq_len} tokens and {run.job.optimizer} are "
        "the training script's to say."
    )
    if kind == FSDP and isinstance(run.job.spec, ModuleSpec):
        about += (
            "\nA module without _no_split_modules also needs, in fsdp_config, the "
            "classes of its layers:\nfsdp_transformer_layer_cls_to_wrap: Block"
        )
    files[ACCELERATE] = yaml_text(found, about)
    command = (
        "accelerate",
        "launch",
        "--config_file",
        ACCELERATE,
        "train.py",
        *sizes.split(),
    )
    return Written(files=files, command=command)


def _mixed(run: Run, kind: str, target: str) -> str:
    """`mixed_precision`: with DDP it is autocast, else 16-bit weights."""
    name = run.choice.precision
    amp = name.startswith("amp-")
    found = {"fp32": "no", "fp16": "fp16", "bf16": "bf16"}.get(
        name.removeprefix("amp-")
    )
    if found is None or (found != "no" and amp != (kind == DDP)):
        raise Unsupported(
            f"--export {target}: mixed precision is autocast with DDP (amp-bf16), and "
            f"16-bit weights with {FSDP} and {DEEPSPEED} (bf16), not {name} with {kind}"
        )
    if kind == FSDP and found != "no" and run.choice.gradient_format != "fp32":
        raise Unsupported(
            f"--export {target}: {FSDP} reduces gradients in fp32, not in "
            f"{run.choice.gradient_format}; choose --grad-dtype fp32"
        )
    return found


def _fsdp(run: Run) -> dict[str, Any]:
    choice = run.choice
    if choice.recompute not in ("none", "full") or choice.recompute_layers is not None:
        raise Unsupported(
            "--export accelerate: fsdp_activation_checkpointing is of all layers, "
            "whole; choose --recompute none or full, without --recompute-layers"
        )
    if choice.offload.activations:
        raise Unsupported(
            "--export accelerate: no key says that activations are offloaded; leave "
            "activations=… out of --offload"
        )
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": choice.zero == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": choice.offload.parameters,
        "fsdp_activation_checkpointing": choice.recompute == "full",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
    }


def _hybrid(run: Run) -> dict[str, Any]:
    choice = run.choice
    return {
        "parallelism_config_dp_replicate_size": choice.dp // choice.zero_group,
        "parallelism_config_dp_shard_size": choice.zero_group,
        "parallelism_config_tp_size": 1,
        "parallelism_config_cp_size": 1,
    }


def _megatron(run: Run) -> dict[str, Any]:
    choice = run.choice
    if choice.recompute not in ("none", "selective") or choice.virtual_stages > 1:
        raise Unsupported(
            "--export accelerate: its Megatron plugin recomputes attention's core or "
            "nothing, and has no virtual stages; export megatron, or choose "
            "--recompute selective"
        )
    return {
        "megatron_lm_tp_degree": choice.tp,
        "megatron_lm_pp_degree": choice.pp,
        "megatron_lm_num_micro_batches": run.micro_batches,
        "megatron_lm_sequence_parallelism": choice.sequence_parallel and choice.tp > 1,
        "megatron_lm_recompute_activations": choice.recompute == "selective",
        "megatron_lm_use_distributed_optimizer": choice.zero == 1,
        "megatron_lm_gradient_clipping": 1.0,
    }


def write_trainer(run: Run) -> Written:
    """`TrainingArguments` as JSON, and DeepSpeed's file where that is the engine."""
    names = {key: value for key, value in ENGINES.items() if key != MEGATRON}
    kind = engine(run, "trainer", names)
    choice = run.choice
    if kind == FSDP and run.shards_parts:
        raise Unsupported(
            "--export trainer: no argument says that shards span a part of data "
            "parallelism; export accelerate, whose parallelism_config does"
        )
    if run.job.optimizer not in OPTIMIZERS:
        raise Unsupported(
            f"--export trainer: optim has no {run.job.optimizer} of the same cost; it "
            f"has {', '.join(OPTIMIZERS)}"
        )
    if choice.pp > 1 or choice.tp > 1 or choice.cp > 1:
        raise Unsupported(
            "--export trainer: TrainingArguments say nothing of tensor, context or "
            "pipeline parallelism; plan with --tp 1 --pp 1 --cp 1"
        )
    mixed = _mixed(run, kind, "trainer")
    found: dict[str, Any] = {
        "output_dir": "outputs",
        "per_device_train_batch_size": choice.micro_batch,
        "gradient_accumulation_steps": run.micro_batches,
        "max_steps": 1000,
        "optim": OPTIMIZERS[run.job.optimizer],
        "learning_rate": 3e-4,
        "bf16": mixed == "bf16",
        "fp16": mixed == "fp16",
    }
    files = {}
    if kind == FSDP:
        own = {key.removeprefix("fsdp_"): value for key, value in _fsdp(run).items()}
        own["cpu_offload"] = own.pop("offload_params")
        found |= {"fsdp": True, "fsdp_config": own}
    else:
        found["gradient_checkpointing"] = _checkpoints(run)
    if kind == DEEPSPEED:
        found["deepspeed"] = FILE
        files[FILE] = json_text(_auto(configuration(run)))
    files[TRAINER] = json_text(found)
    command = ("torchrun", *nodes_of(run), "train.py", TRAINER)
    return Written(files=files, command=command)


def _checkpoints(run: Run) -> bool:
    choice = run.choice
    if choice.recompute not in ("none", "full") or choice.recompute_layers is not None:
        raise Unsupported(
            "--export trainer: gradient_checkpointing is of all layers, whole; choose "
            "--recompute none or full, without --recompute-layers"
        )
    return choice.recompute == "full"


def _auto(document: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's file with `auto` where the Trainer's arguments say it: twice said,
    the two must be the same (transformers/integrations/deepspeed.py)."""
    found = {key: one for key, one in document.items() if "activation" not in key}
    for name in (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    ):
        found[name] = "auto"
    for name in ("fp16", "bf16"):
        if name in found:
            found[name] = {"enabled": "auto"}
    optimizer = dict(found.pop("optimizer"))
    names = {"AdamW": ("lr", "betas", "eps", "weight_decay"), "SGD": ("lr",)}
    known = names.get(optimizer["type"], ())
    return {
        **found,
        "optimizer": {**optimizer, "params": dict.fromkeys(known, "auto")},
    }


def read_accelerate(fields: Fields, world: int | None, beside: Beside) -> Foreign:
    """What accelerate's configuration says; raises InvalidFile and Contradiction."""
    kinds = (*ENGINES, DDP, "NO")
    kind = fields.word("distributed_type", kinds, "NO") or "NO"
    said = fields.integer("num_processes", zero=True)
    gpus = said if said and said > 0 else world
    mixed = str(fields.raw("mixed_precision") or "no")
    if mixed not in ("no", "fp16", "bf16"):
        raise fields.wrong("mixed_precision", "one of no, fp16, bf16")
    amp = "amp-" if kind in (DDP, "NO") else ""
    precision = "fp32" if mixed == "no" else f"{amp}{mixed}"
    elsewhere = "accelerate's file does not say it, the training script does; give it"
    plain = Foreign(
        format=fields.what,
        framework="fsdp2",
        job=JobOptions(gpus=gpus, precision=precision),
        lacks={
            "gpus": "num_processes is not there; give it",
            "micro_batch": elsewhere,
            "global_batch": elsewhere,
        },
    )
    if kind == FSDP:
        plain = _read_fsdp(fields, plain)
    elif kind == DEEPSPEED:
        plain = _read_file(fields, plain, beside)
    elif kind == MEGATRON:
        plain = _read_megatron(fields, plain)
    else:
        plain = replace(plain, pins=Pins(zero=0))
    harmless = set(fields.left())
    return replace(plain, ignored=(*plain.ignored, *sorted(harmless)))


def _read_fsdp(fields: Fields, plain: Foreign) -> Foreign:
    section = fields.section("fsdp_config")
    spread = fields.section("parallelism_config")
    sizes = {
        name: spread.count(f"parallelism_config_{name}_size", 1)
        for name in ("dp_replicate", "dp_shard", "tp", "cp")
    }
    pins = _of_fsdp(section, "fsdp_")
    dp = divided(fields, plain.job.gpus, sizes["tp"], sizes["cp"])
    if sizes["dp_replicate"] > 1 and dp is not None:
        if dp % sizes["dp_replicate"]:
            raise Contradiction(
                f"{fields.what}: dp_replicate_size {sizes['dp_replicate']} does not "
                f"divide {dp} processes"
            )
        pins["zero_group"] = dp // sizes["dp_replicate"]
    if sizes["cp"] > 1:
        pins["cp_kind"] = "all-gather"
    return replace(plain, pins=Pins(tp=sizes["tp"], cp=sizes["cp"], dp=dp, **pins))


def _of_fsdp(section: Fields, prefix: str) -> dict[str, Any]:
    """Pins of accelerate's or the Trainer's FSDP section."""
    again = section.raw(f"{prefix}reshard_after_forward")
    strategy = section.raw(f"{prefix}sharding_strategy")
    names = {"FULL_SHARD": 3, "1": 3, "SHARD_GRAD_OP": 2, "2": 2, "NO_SHARD": 0, "3": 0}
    if isinstance(again, str) and again.upper() in names:  # version 1
        zero = names[again.upper()]
    elif strategy is not None and again is None:
        if str(strategy).upper() not in names:
            raise section.wrong(
                f"{prefix}sharding_strategy", f"one of {', '.join(names)}"
            )
        zero = names[str(strategy).upper()]
    else:
        kept = section.switch(f"{prefix}reshard_after_forward", default=True)
        zero = 3 if kept else 2
    found: dict[str, Any] = {"zero": zero}
    full = section.switch(f"{prefix}activation_checkpointing")
    found["recompute"] = "full" if full else "none"
    away = f"{prefix}offload_params" if prefix else "cpu_offload"
    if section.switch(away):
        found |= {"offload": "optimizer,parameters", "offload_to": "cpu"}
    return found


def _read_file(fields: Fields, plain: Foreign, beside: Beside) -> Foreign:
    """With DeepSpeed: its own file, or the few keys that stand for one."""
    section = fields.section("deepspeed_config")
    named = section.word("deepspeed_config_file")
    if named is None:
        level = section.integer("zero_stage", 2, zero=True) or 0
        if level > 3:
            raise section.wrong("zero_stage", "one of 0, 1, 2, 3")
        parts = [
            what
            for what, key in (
                ("optimizer", "offload_optimizer_device"),
                ("parameters", "offload_param_device"),
            )
            if section.word(key, ("none", "cpu", "nvme"), "none") != "none"
        ]
        tiers = [str(section.values.get("offload_optimizer_device", "cpu"))]
        away: dict[str, Any] = {}
        if parts:
            away = {"offload": ",".join(parts), "offload_to": tiers[0]}
        return replace(plain, framework="deepspeed", pins=Pins(zero=level, **away))
    inner = beside(named)
    if inner is None:
        raise Contradiction(
            f"{fields.what}: {named}, which it names, is not beside it; put it there, "
            "or read it instead"
        )
    return _under(plain, read_deepspeed(inner, plain.job.gpus), keep=("precision",))


def _under(plain: Foreign, engine: Foreign, keep: tuple[str, ...]) -> Foreign:
    """What an outer file and DeepSpeed's say; *keep* is DeepSpeed's where both do."""
    job = {**given(engine.job), **given(plain.job)}
    job |= {key: one for key, one in given(engine.job).items() if key in keep}
    pins = {**given(plain.pins), **given(engine.pins)}
    lacks = {key: one for key, one in plain.lacks.items() if key not in {**job, **pins}}
    return replace(
        plain,
        framework=engine.framework,
        job=JobOptions(**job),
        pins=Pins(**pins),
        lacks=lacks,
        assumed={**plain.assumed, **engine.assumed},
        ignored=(*plain.ignored, *engine.ignored),
        warnings=(*plain.warnings, *engine.warnings),
    )


def _read_megatron(fields: Fields, plain: Foreign) -> Foreign:
    section = fields.section("megatron_lm_config")
    tp = section.count("megatron_lm_tp_degree", 1)
    pp = section.count("megatron_lm_pp_degree", 1)
    pins = Pins(
        tp=tp,
        pp=pp,
        dp=divided(fields, plain.job.gpus, tp, pp),
        zero=int(section.switch("megatron_lm_use_distributed_optimizer")),
        sequence_parallel=section.switch("megatron_lm_sequence_parallelism") and tp > 1,
        recompute="selective"
        if section.switch("megatron_lm_recompute_activations")
        else "none",
    )
    return replace(plain, framework="megatron-lm", pins=pins)


def read_trainer(fields: Fields, world: int | None, beside: Beside) -> Foreign:
    """What the Trainer's arguments say; raises InvalidFile and Contradiction."""
    micro = fields.count("per_device_train_batch_size", 8)
    steps = fields.count("gradient_accumulation_steps", 1)
    half, brain = fields.switch("fp16"), fields.switch("bf16")
    if half and brain:
        raise Contradiction(f"{fields.what}: fp16 and bf16 exclude each other")
    optim = fields.word("optim", default="adamw_torch") or ""
    if (
        not optim.startswith(("adamw_torch", "adamw_hf", "adamw_apex"))
        and optim != "sgd"
    ):
        raise Unsupported(
            f"{fields.what}: optim {optim} is not priced; adamw_torch and sgd are"
        )
    with_file = fields.raw("deepspeed")
    with_fsdp = fields.raw("fsdp")
    again = fields.switch("gradient_checkpointing")
    amp = "" if with_file or with_fsdp else "amp-"
    format_ = "fp16" if half else "bf16" if brain else None
    batch = None if world is None else micro * steps * world
    plain = Foreign(
        format=fields.what,
        framework="fsdp2",
        job=JobOptions(
            gpus=world,
            global_batch=batch,
            optimizer="sgd" if optim == "sgd" else "adamw",
            precision=f"{amp}{format_}" if format_ else "fp32",
        ),
        pins=Pins(micro_batch=micro, zero=0, recompute="full" if again else "none"),
        lacks={"gpus": "the Trainer's arguments do not say on how many; give it"},
        assumed=fields.defaults(
            per_device_train_batch_size=8,
            gradient_accumulation_steps=1,
            optim="adamw_torch",
        ),
    )
    if with_file is not None:
        plain = _with_file(fields, plain, with_file, beside)
    elif with_fsdp:
        plain = _with_fsdp(fields, plain, with_fsdp)
    return replace(plain, ignored=(*plain.ignored, *fields.left()))


def _with_file(fields: Fields, plain: Foreign, named: Any, beside: Beside) -> Foreign:
    """The Trainer's arguments with DeepSpeed's, *named* or written out."""
    inner = (
        Fields(named, f"{fields.what}: deepspeed")
        if isinstance(named, dict)
        else beside(str(named))
    )
    if inner is None:
        raise Contradiction(
            f"{fields.what}: {named}, which it names, is not beside it; put it there"
        )
    inner.values.pop("activation_checkpointing", None)
    return _under(plain, read_deepspeed(inner, plain.job.gpus), keep=())


def _with_fsdp(fields: Fields, plain: Foreign, words: Any) -> Foreign:
    """The Trainer's arguments with FSDP, in the *words* of releases before 5 too."""
    own = _of_fsdp(fields.section("fsdp_config"), "")
    said = words if isinstance(words, list) else str(words).split()
    if "shard_grad_op" in said:
        own["zero"] = 2
    if "offload" in said:
        own |= {"offload": "optimizer,parameters", "offload_to": "cpu"}
    if plain.pins.recompute == "full":
        own["recompute"] = "full"
    return replace(plain, pins=replace(plain.pins, **own))
