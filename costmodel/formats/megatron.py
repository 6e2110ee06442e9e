"""Megatron-LM: arguments of pretrain_gpt.py, in both directions.

Names are those of megatron/training/arguments.py (commit 000c4ac2 of November 2025):
its groups "distributed", "training", "mixed precision" and "moe"; the model's are in
`costmodel.formats.megatron_shape`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from costmodel.formats.fields import Fields
from costmodel.formats.megatron_shape import Arguments, read_shape, shape_arguments
from costmodel.formats.setup import (
    Foreign,
    Run,
    divided,
    gradients_of,
    overlap_of,
)
from costmodel.formats.text import Written, array, rendezvous, script
from costmodel.layout import Uniform
from costmodel.options import Pins
from profiles.commandline import JobOptions
from profiles.errors import Contradiction, InvalidFile, Unsupported

FRAMEWORK: Final = "megatron-core"
STRATEGIES: Final = {2: "optim_grads", 3: "optim_grads_params"}
CP_KINDS: Final = {"ring": "p2p", "all-gather": "all_gather", "ulysses": "a2a"}
MODULES: Final = {"core_attn": ("attention",), "layernorm": ("input_norm", "mlp_norm")}
FP8: Final = {"fp8": ("hybrid", "delayed"), "mxfp8": ("e4m3", "mxfp8")}
FP32_BYTES: Final = 4
LONGEST_DRAWING: Final = 2000
MOST_DRAWN: Final = 200_000
_GROUP: Final = re.compile(r"\(([^()]*)\)\*(\d{1,4})")
# What the user replaces: none of it changes what a step costs.
DATA: Final[Arguments] = {
    "mock-data": True,
    "tokenizer-type": "NullTokenizer",
    "lr": 1.5e-4,
    "train-iters": 1000,
    "split": "99,1,0",
}


def write_megatron(run: Run) -> Written:
    """A script that runs pretrain_gpt.py."""
    model = shape_arguments(run.job, "megatron")
    arrays = {
        "DISTRIBUTED_ARGS": rendezvous(run),
        "MODEL_ARGS": model,
        "PARALLEL_ARGS": parallel_arguments(run),
        "TRAINING_ARGS": training_arguments(run),
        "DATA_ARGS": DATA,
    }
    one_queue = "export CUDA_DEVICE_MAX_CONNECTIONS=1"
    env = [one_queue if run.choice.zero < 2 else "unset CUDA_DEVICE_MAX_CONNECTIONS"]
    if run.choice.precision == "tf32":
        env.append("export NVIDIA_TF32_OVERRIDE=1")
    launch, *others = arrays
    body = [*env, f"{launch}=({' '.join(rendezvous(run))})"]
    body += [array(name, arrays[name]) for name in others]  # type: ignore[arg-type]
    command = [
        "torchrun",
        f'"${{{launch}[@]}}"',
        "pretrain_gpt.py",
        *(f'"${{{name}[@]}}"' for name in others),
    ]
    about = (
        "Megatron-LM's pretrain_gpt.py (megatron/training/arguments.py)\n"
        "DATA_ARGS are yours to change: none of them changes what a step costs."
    )
    text = script(run, about, body, command)
    return Written(files={"megatron.sh": text}, command=("bash", "megatron.sh"))


def parallel_arguments(run: Run) -> Arguments:
    """The group "distributed", and of "moe" how experts are spread."""
    choice = run.choice
    found: Arguments = {
        "tensor-model-parallel-size": choice.tp,
        "pipeline-model-parallel-size": choice.pp,
    }
    if choice.virtual_stages > 1:
        found["num-virtual-stages-per-pipeline-rank"] = choice.virtual_stages
    found |= cut_arguments(run)
    if choice.cp > 1:
        found["context-parallel-size"] = choice.cp
        found["cp-comm-type"] = CP_KINDS[choice.cp_kind]
    if run.job.has_experts:
        if choice.tp > 1 and not choice.sequence_parallel:
            raise Unsupported(
                "--export megatron: experts with tensor parallelism need "
                "--sequence-parallel (validate_args of megatron/training/arguments.py)"
            )
        found["expert-model-parallel-size"] = choice.ep
        found["expert-tensor-parallel-size"] = choice.etp
    if choice.sequence_parallel and choice.tp > 1:
        found["sequence-parallel"] = True
    return {**found, **_sharding(run), **_overlap(run)}


def cut_arguments(run: Run) -> Arguments:
    """Which layers each stage has, where it is not as many as every other."""
    counts, pp = run.counts, run.choice.pp
    if len(set(counts)) == 1:
        return {}
    if len(counts) == pp and pp > 2 and len(set(counts[1:-1])) == 1 and 0 not in counts:
        return {
            "decoder-first-pipeline-num-layers": counts[0],
            "decoder-last-pipeline-num-layers": counts[-1],
        }
    stages = [f"t*{count}" if count else "" for count in counts]
    stages[0] = ",".join(filter(None, ("E", stages[0])))
    spec: Any = run.job.spec
    ends = [*(["m"] * spec.multi_token_heads), "L"]
    stages[-1] = ",".join(filter(None, (stages[-1], *ends)))
    return {"pipeline-model-parallel-layout": "|".join(stages)}


def _sharding(run: Run) -> Arguments:
    choice = run.choice
    found: Arguments = {}
    if choice.zero:
        found["use-distributed-optimizer"] = True
    if choice.zero > 1:
        found["use-megatron-fsdp"] = True
        found["ckpt-format"] = "fsdp_dtensor"
        found["data-parallel-sharding-strategy"] = STRATEGIES[choice.zero]
    if run.shards_parts:
        found["num-distributed-optimizer-instances"] = choice.dp // choice.zero_group
    return found


def _overlap(run: Run) -> Arguments:
    hidden = run.hides(FRAMEWORK)
    if "param" in hidden and "grad" not in hidden and run.choice.zero:
        raise Unsupported(
            "--export megatron: --overlap-param-gather needs --overlap-grad-reduce; "
            "choose --overlap grad,param or none"
        )
    found: Arguments = {
        "overlap-grad-reduce": "grad" in hidden,
        "overlap-param-gather": "param" in hidden and run.choice.zero > 0,
        "tp-comm-overlap": "tp" in hidden and run.choice.tp > 1,
    }
    if run.options.bucket_mb is not None:
        found["ddp-bucket-size"] = round(run.options.bucket_mb * 1e6 / FP32_BYTES)
    return found


def training_arguments(run: Run) -> Arguments:
    """The batch, the optimizer, precision, recomputation and offloading."""
    choice = run.choice
    return {
        "micro-batch-size": choice.micro_batch,
        "global-batch-size": run.job.global_batch,
        **_optimizer(run),
        **precision_arguments(choice),
        **recompute_arguments(run, "megatron"),
        **_offload(run),
        "attention-backend": "flash" if choice.flash_attention else "unfused",
    }


def _optimizer(run: Run) -> Arguments:
    name = run.job.optimizer
    if name == "adamw-bf16-moments":
        return {
            "optimizer": "adam",
            "use-precision-aware-optimizer": True,
            "exp-avg-dtype": "bf16",
            "exp-avg-sq-dtype": "bf16",
        }
    return optimizer_arguments(name, "megatron")


def optimizer_arguments(name: str, target: str) -> Arguments:
    """Of those that Megatron has; its adam is AdamW."""
    if name == "adamw":
        return {"optimizer": "adam"}
    if name in ("sgd", "sgd-momentum"):
        return {"optimizer": "sgd", "sgd-momentum": 0.9 if name != "sgd" else 0.0}
    raise Unsupported(
        f"--export {target}: Megatron has no optimizer {name}; its adam is AdamW, and "
        "it has sgd: plan with --optimizer adamw, sgd-momentum or sgd"
    )


def precision_arguments(choice: Uniform) -> Arguments:
    """The group "mixed precision", and Transformer Engine's 8 and 4 bit formats."""
    name, gradients = choice.precision, choice.gradient_format
    if name in ("fp32", "tf32"):
        return {}
    if gradients == "bf16+fp32" or (gradients == "fp16") != (
        name == "fp16" and gradients != "fp32"
    ):
        raise Unsupported(
            f"Megatron keeps no gradients in {gradients} in {name} training; choose "
            "--grad-dtype fp32"
        )
    found: Arguments = {"fp16" if name == "fp16" else "bf16": True}
    if gradients == "fp32":
        found["accumulate-allreduce-grads-in-fp32"] = True
    elif gradients == "bf16":
        found["grad-reduce-in-bf16"] = True
    if name in FP8:
        found["fp8-format"], found["fp8-recipe"] = FP8[name]
    if name == "nvfp4":
        found |= {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"}
    return found


def recompute_arguments(run: Run, target: str) -> Arguments:
    """`--recompute-…`: granularity, method, layers and modules."""
    name, some = run.choice.recompute, run.choice.recompute_layers
    if name == "none" or some == 0:
        return {}
    if name == "selective" and some is None:
        return {"recompute-granularity": "selective"}
    full: Arguments = {"recompute-granularity": "full"}
    if name == "full" and some is not None:
        return {**full, "recompute-method": "block", "recompute-num-layers": some}
    if name == "full":
        return {**full, "recompute-method": "uniform", "recompute-num-layers": 1}
    if name == "sqrt" and some is None:
        length = segment_length(run)
        if length is not None:
            uniform = {"recompute-method": "uniform", "recompute-num-layers": length}
            return {**full, **uniform}
        raise Unsupported(
            f"--export {target}: --recompute sqrt cuts these stages of "
            f"{', '.join(map(str, sorted(set(run.counts))))} layers into segments of "
            "unlike length, and --recompute-num-layers has one; choose --recompute full"
        )
    modules = _modules(name)
    if some is None and modules is not None and target == "megatron":
        return {"recompute-granularity": "selective", "recompute-modules": modules}
    where = "" if some is None else f" in the first {some} layers of each stage"
    raise Unsupported(
        f"--export {target}: Megatron does not recompute {name}{where}; it recomputes "
        "attention (core_attn), input_norm with mlp_norm (layernorm), or whole layers: "
        "all, or the first K of each stage"
    )


def segment_length(run: Run) -> int | None:
    """Layers of each segment of √n, where all are as long but maybe the last."""
    lengths = {_uniform_length(count) for count in run.counts}
    return lengths.pop() if len(lengths) == 1 else None


def _uniform_length(count: int) -> int | None:
    from costmodel.layout import first_of_each

    first = sorted(first_of_each(count))
    length = first[1] if len(first) > 1 else count
    return length if first == list(range(0, count, length)) else None


def _modules(name: str) -> tuple[str, ...] | None:
    left = set(name.split(","))
    found = [key for key, parts in MODULES.items() if left.issuperset(parts)]
    for key in found:
        left -= set(MODULES[key])
    return tuple(found) if found and not left else None


def _offload(run: Run) -> Arguments:
    offload, found = run.choice.offload, Arguments()
    if offload.optimizer:
        found["optimizer-cpu-offload"] = True
    if offload.activations:
        layers = offload.activations * run.counts[0]
        if run.choice.pp > 1 or layers != int(layers) or layers >= run.counts[0]:
            raise Unsupported(
                "--export megatron: --cpu-offloading-num-layers offloads whole layers, "
                "not all, and without a pipeline; choose --pp 1 and a ratio that is a "
                f"number of the {run.counts[0]} layers"
            )
        found["cpu-offloading-num-layers"] = int(layers)
    return found


def read_megatron(
    fields: Fields, world: int | None, framework: str = FRAMEWORK
) -> Foreign:
    """What arguments of pretrain_gpt.py say; raises InvalidFile and Contradiction."""
    shape, assumed = read_shape(fields, deepspeed=False)
    refuse_other_models(fields)
    tp = fields.count("tensor-model-parallel-size", 1)
    pp = fields.count("pipeline-model-parallel-size", 1)
    cp = fields.count("context-parallel-size", 1)
    dp = divided(fields, world, tp, pp, cp)
    stages = _read_stages(fields, pp, shape["layers"])
    micro = fields.count("micro-batch-size", 1)
    if "micro-batch-size" not in fields:
        raise InvalidFile(f"{fields.what}: --micro-batch-size is missing; add it")
    batch = fields.integer("global-batch-size")
    if batch is None and dp is not None:
        batch = assumed["global_batch"] = micro * dp  # as Megatron does
    return Foreign(
        format=fields.what,
        framework=framework,
        job=JobOptions(
            gpus=world,
            seq_len=_sequence(fields),
            global_batch=batch,
            optimizer=_read_optimizer(fields),
            **read_precision(fields, framework),
        ),
        pins=Pins(
            tp=tp,
            pp=pp,
            cp=cp,
            dp=dp,
            micro_batch=micro,
            **_read_context(fields, cp),
            **_read_experts(fields, tp),
            **stages,
            **_read_zero(fields, dp),
            **read_recompute(fields, stages["stage_layers"]),
            **_read_offload(fields, shape["layers"]),
            sequence_parallel=fields.switch("sequence-parallel") and tp > 1,
            flash_attention=_read_attention(fields, assumed),
            **_read_overlap(fields, framework),
        ),
        shape=shape,
        lacks={
            "gpus": "the arguments do not say how many processes there are; give it",
            "global_batch": "--global-batch-size is missing; give it",
        },
        assumed=assumed,
        **told(fields),
    )


def refuse_other_models(fields: Fields) -> None:
    """Raise Unsupported for arguments that make it another model."""
    others = (
        *("hybrid-override-pattern", "hybrid-attention-ratio", "is-hybrid-model"),
        *("spec", "num-experts-switch", "window-size", "softmax-type", "quick-geglu"),
        *("qk-l2-norm", "moe-latent-size", "retro-project-dir", "encoder-num-layers"),
        *("heterogeneous-layers-config-path", "linear-attention-type"),
        *("apply-residual-connection-post-layernorm", "use-tp-pp-dp-mapping"),
        *("hierarchical-context-parallel-sizes", "num-layers-per-virtual"),
    )
    for name in others:
        if name in fields:
            raise Unsupported(
                f"{fields.what}: --{name} is not read here, and changes what a step "
                "costs; price the layout with the options of simulate"
            )


def _sequence(fields: Fields) -> int:
    found = fields.integer("seq-length") or fields.integer("encoder-seq-length")
    fields.skip("seq-length", "encoder-seq-length", "decoder-seq-length")
    if found is None:
        raise InvalidFile(f"{fields.what}: --seq-length is missing; add it")
    return found


def _read_optimizer(fields: Fields) -> str:
    name = fields.word("optimizer", ("adam", "sgd"), "adam")
    aware = fields.switch("use-precision-aware-optimizer")
    dtypes = [
        fields.word(one, ("fp32", "fp16", "bf16", "fp8"), "fp32")
        for one in ("exp-avg-dtype", "exp-avg-sq-dtype")
    ]
    if name == "sgd":
        return "sgd-momentum" if fields.number("sgd-momentum", 0.9) else "sgd"
    if aware and "fp8" in dtypes:
        raise Unsupported(f"{fields.what}: moments in fp8 are not priced; use bf16")
    return "adamw-bf16-moments" if aware and dtypes == ["bf16", "bf16"] else "adamw"


def read_precision(fields: Fields, framework: str = FRAMEWORK) -> dict[str, Any]:
    """Members of the job: precision, and the format of gradients."""
    half, brain = fields.switch("fp16"), fields.switch("bf16")
    fp8 = fields.word("fp8-format", ("e4m3", "hybrid"))
    recipe = fields.word("fp8-recipe", default="delayed")
    fp4 = fields.word("fp4-format", ("e2m1",))
    fields.skip("fp4-recipe")
    in_fp32 = fields.switch("accumulate-allreduce-grads-in-fp32")
    in_bf16 = fields.switch("grad-reduce-in-bf16")
    if half and brain:
        raise Contradiction(f"{fields.what}: --fp16 and --bf16 exclude each other")
    if not (half or brain):
        return {"precision": "fp32", "grad_dtype": gradients_of(framework, "fp32")}
    name = "fp16" if half else "bf16"
    if fp4:
        name = "nvfp4"
    elif fp8:
        name = "mxfp8" if recipe == "mxfp8" else "fp8"
    gradients = "fp16" if half and not in_fp32 else "fp32"
    if brain and in_bf16:
        gradients = "bf16"
    return {"precision": name, "grad_dtype": gradients_of(framework, gradients)}


def _read_context(fields: Fields, cp: int) -> dict[str, Any]:
    kinds = {value: key for key, value in CP_KINDS.items()} | {
        "allgather": "all-gather"
    }
    found = fields.word("cp-comm-type", kinds, "p2p")
    return {"cp_kind": kinds[found or "p2p"]} if cp > 1 else {}


def _read_experts(fields: Fields, tp: int) -> dict[str, Any]:
    ep = fields.count("expert-model-parallel-size", 1)
    etp = fields.count("expert-tensor-parallel-size", tp)
    if fields.word("moe-token-dispatcher-type") == "allgather" and ep > 1:
        fields.taken.discard("moe-token-dispatcher-type")  # it is told
    return {"ep": ep, "etp": etp} if fields.integer("num-experts", 1) != 1 else {}


def _read_stages(fields: Fields, pp: int, layers: int) -> dict[str, Any]:
    """Virtual stages, and the layers of each."""
    virtual = fields.integer("num-virtual-stages-per-pipeline-rank")
    each = fields.integer("num-layers-per-virtual-pipeline-stage")
    drawn = fields.word("pipeline-model-parallel-layout")
    counted = [
        int(fields.switch(f"account-for-{end}-in-pipeline-split"))
        for end in ("embedding", "loss")
    ]
    ends = [
        fields.integer(f"decoder-{end}-pipeline-num-layers")
        for end in ("first", "last")
    ]
    if drawn is not None:
        counts = _drawn(fields, drawn, layers)
        virtual, rest = divmod(len(counts), pp)
        if rest:
            raise Contradiction(
                f"{fields.what}: --pipeline-model-parallel-layout has {len(counts)} "
                f"stages, which {pp} pipeline ranks do not share equally"
            )
    else:
        if each is not None:
            virtual = (layers + sum(counted)) // pp // each or 1
        counts = _shared(fields, layers, (pp, virtual or 1), ends, counted)
    schedule = {} if not virtual or virtual == 1 else {"schedule": "interleaved"}
    return {
        "virtual_stages": virtual or 1,
        "stage_layers": ",".join(map(str, counts)),
        **schedule,
    }


def _shared(
    fields: Fields,
    layers: int,
    stages: tuple[int, int],
    ends: list[int | None],
    counted: list[int],
) -> tuple[int, ...]:
    """Layers of each of pipeline ranks × virtual *stages*: what the ends leave is
    shared out equally, embedding and loss *counted* as layers where that is asked."""
    ranks, virtual = stages
    fixed = [one for one in ends if one is not None]
    left, others = layers - sum(fixed) + sum(counted), ranks - len(fixed)
    each, rest = divmod(left, others) if others > 0 else (0, left)
    by_rank = [each] * ranks
    for place, one in zip((0, -1), ends, strict=True):
        if one is not None:
            by_rank[place] = one
    if rest or each < (others > 0) or any(one % virtual for one in by_rank):
        raise Contradiction(
            f"{fields.what}: {layers} layers do not share out equally over {ranks} "
            f"pipeline ranks × {virtual} stages; Megatron needs "
            "--decoder-first-pipeline-num-layers and its like there"
        )
    counts = [one // virtual for one in by_rank] * virtual
    counts[0] -= counted[0]
    counts[-1] -= counted[1]
    return tuple(counts)


def _drawn(fields: Fields, text: str, layers: int) -> tuple[int, ...]:
    """Layers of each stage of `Et*3|(t*4|)*2,t*2L`."""
    name, flat = "pipeline-model-parallel-layout", text.replace(",", "")
    if len(text) > LONGEST_DRAWING:
        raise fields.wrong(name, f"at most {LONGEST_DRAWING} characters")
    flat = re.sub(r"([EtmL|])\*(\d{1,4})", lambda m: m[1] * int(m[2]), flat)
    while (group := _GROUP.search(flat)) and len(flat) < MOST_DRAWN:
        flat = flat[: group.start()] + group[1] * int(group[2]) + flat[group.end() :]
    stages = flat[:MOST_DRAWN].split("|")
    counts = tuple(stage.count("t") for stage in stages)
    if set(flat) - set("EtmL|") or sum(counts) != layers:
        raise fields.wrong(name, f"stages of {layers} layers t, such as Et*3|t*4|t*3L")
    return counts


def _read_zero(fields: Fields, dp: int | None) -> dict[str, Any]:
    zero = 1 if fields.switch("use-distributed-optimizer") else 0
    levels = {"no_shard": 0, "optim": 1} | {v: k for k, v in STRATEGIES.items()}
    strategy = fields.word("data-parallel-sharding-strategy", levels, "no_shard")
    if fields.switch("use-megatron-fsdp") or fields.switch("use-custom-fsdp"):
        zero = levels[strategy or "no_shard"]
    if fields.switch("use-torch-fsdp2"):
        zero = 2 if fields.switch("torch-fsdp2-no-reshard-after-forward") else 3
    copies = fields.count("num-distributed-optimizer-instances", 1)
    if zero == 0 or copies == 1 or dp is None:
        return {"zero": zero}
    if dp % copies:
        raise Contradiction(
            f"{fields.what}: --num-distributed-optimizer-instances {copies} does not "
            f"divide the {dp} data-parallel ranks"
        )
    return {"zero": zero, "zero_group": dp // copies}


def read_recompute(fields: Fields, stages: str) -> dict[str, Any]:
    """`--recompute` and `--recompute-layers` of *stages* of so many layers; raises
    Unsupported for what has none."""
    every = fields.switch("checkpoint-activations")
    kind = fields.word("recompute-granularity", ("full", "selective"))
    if fields.switch("recompute-activations"):
        kind = kind or "selective"
    method = fields.word("recompute-method", ("uniform", "block"))
    number = fields.integer("recompute-num-layers", zero=True)
    modules = fields.words("recompute-modules") or ("core_attn",)
    fields.skip("checkpoint-num-layers", "distribute-saved-activations")
    if kind is None:
        return {"recompute": "full" if every else "none"}
    if kind == "selective":
        unknown = [one for one in modules if one not in MODULES]
        if unknown:
            raise Unsupported(
                f"{fields.what}: --recompute-modules {', '.join(unknown)} has no "
                f"operator of its own here; {', '.join(MODULES)} have"
            )
        if modules == ("core_attn",):
            return {"recompute": "selective"}
        names = sorted(part for one in modules for part in MODULES[one])
        return {"recompute": ",".join(names)}
    if method == "block":
        return {"recompute": "full", "recompute_layers": number or 0}
    if number in (None, 0, 1):
        return {"recompute": "full"}
    counts = {int(one) for one in stages.split(",")}
    if {_uniform_length(one) for one in counts} != {number}:
        raise Unsupported(
            f"{fields.what}: segments of {number} layers that are recomputed together "
            "are priced where they are as long as the root of a stage's layers; "
            "--recompute-num-layers 1 is, with the uniform method"
        )
    return {"recompute": "sqrt"}


def _read_offload(fields: Fields, layers: int) -> dict[str, Any]:
    parts = []
    if fields.switch("optimizer-cpu-offload"):
        if fields.number("optimizer-offload-fraction", 1.0) != 1.0:
            raise Unsupported(
                f"{fields.what}: a part of the optimizer on the host is not priced; "
                "--optimizer-offload-fraction 1 is"
            )
        parts.append("optimizer")
    away = fields.integer("cpu-offloading-num-layers", 0, zero=True)
    if away:
        parts.append(f"activations={min(away / layers, 1):.12g}")
    return {"offload": ",".join(parts), "offload_to": "cpu"} if parts else {}


def _read_attention(fields: Fields, assumed: dict[str, Any]) -> bool:
    kinds = ("flash", "fused", "unfused", "local", "auto")
    found = fields.word("attention-backend", kinds)
    asked = fields.switch("use-flash-attn")
    if fields.word("transformer-impl") == "local":
        fields.taken.discard("transformer-impl")  # it is told
    if found is None and not asked:
        assumed["flash_attention"] = True
    return asked or found not in ("unfused", "local")


def _read_overlap(fields: Fields, framework: str) -> dict[str, Any]:
    size = fields.integer("ddp-bucket-size")
    found = overlap_of(
        framework,
        grad=fields.switch("overlap-grad-reduce"),
        param=fields.switch("overlap-param-gather"),
        tp=fields.switch("tp-comm-overlap"),
    )
    return {
        "overlap": found,
        "bucket_mb": None if size is None else size * FP32_BYTES / 1e6,
    }


# Arguments that change what is read, logged, saved, learned or checked, not what a step
# costs; by their beginnings.
HARMLESS: Final = (
    *("fp8-amax", "fp8-margin", "fp8-interval", "no-create-attention-mask"),
    *("data-", "train-", "valid-", "test-", "split", "mock-data"),
    *("dataloader-type", "vocab-file", "merge-file", "vocab-extra", "tokenizer-"),
    *("tiktoken", "num-workers", "lr", "min-lr", "warmup", "decoupled"),
    *("override-opt", "use-checkpoint-opt", "weight-decay", "start-weight"),
    *("end-weight", "adam-", "clip-grad", "sgd-mom", "init-method"),
    *("embedding-init", "seed", "no-initialization", "data-parallel-rand", "save"),
    *("load", "no-save", "no-load", "ckpt", "dist-ckpt", "async-save", "finetune"),
    *("use-checkpoint", "use-mp-args", "auto-detect", "exit-", "use-dist-ckpt"),
    *("log-", "no-log", "tensorboard", "wandb", "timing-log", "one-logger"),
    *("no-one", "logging", "eval-", "skip-train", "profile", "use-pytorch-prof"),
    *("record-memory", "distributed-timeout", "distributed-backend", "local-rank"),
    *("check-", "no-check", "loss-scale", "initial-loss", "min-loss", "hysteresis"),
    *("use-mcore-models", "no-mmap", "eod-mask", "reset-", "rerun-", "error-inj"),
    *("disable-gloo", "config-log", "moe-aux", "moe-z-loss", "moe-router-load"),
    *("moe-router-bias", "moe-per-layer", "moe-router-dtype", "moe-input-jitter"),
    *("moe-router-topk-scaling", "use-dataset", "moe-router-pre-softmax"),
    *("moe-router-enable-expert-bias", "moe-token-drop-policy", "rotary-percent"),
    *("rotary-interleaved", "apply-layernorm-1p", "mtp-loss"),
    *("no-position-embedding", "make-vocab", "legacy-tokenizer", "trust-remote"),
    *("manual-gc", "no-manual-gc", "data-impl", "DDP-impl", "no-async-tensor"),
    *("use-legacy", "calculate-per-token", "iterations-to-skip", "deepspeed"),
    *("deepscale", "deepspeed_mpi", "cpu_torch", "curriculum", "kill-switch"),
    *("attention-softmax-in-fp32", "apply-query-key-layer-scaling"),
    *("moe-grouped-gemm", "moe-permute-fusion", "moe-router-fu"),
    *("create-moe-param-group", "overlap-p2p", "sharp", "use-sharp", "no-pipeline"),
)


def told(fields: Fields) -> dict[str, Any]:
    """What of *fields* nobody took: left aside where it costs nothing, else warned."""
    left = list(fields.left())
    harmless = [name for name in left if name.startswith(HARMLESS)]
    rest = [name for name in left if name not in harmless]
    return {
        "ignored": tuple(f"--{name}" for name in harmless),
        "warnings": tuple(
            f"--{name} is not priced: the answer is that of a run without it"
            for name in rest
        ),
    }
