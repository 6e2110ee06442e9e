"""torchtitan: its configuration, in both directions.

Tables and keys are those of torchtitan/config/job_config.py up to release 0.2.2, which
reads TOML (`--job.config_file`). Release 0.3 reads a Python function instead
(`--module`, `--config`), with the same fields for the most part
(torchtitan/config/configs.py): it is written beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from costmodel.formats.fields import Fields
from costmodel.formats.setup import Foreign, Run, divided
from costmodel.formats.text import Written, nodes_of, toml_text
from costmodel.options import Pins
from profiles.commandline import JobOptions
from profiles.errors import Contradiction, Unsupported
from profiles.models import model

FRAMEWORK: Final = "torchtitan"
FILE: Final = "torchtitan.toml"
MODULE: Final = "torchtitan_config"
# Catalogue name → name and flavor, and the function of release 0.3.
FLAVORS: Final = {
    "llama3-8b": ("llama3", "8B", "llama3_8b"),
    "llama3-70b": ("llama3", "70B", "llama3_70b"),
    "llama3-405b": ("llama3", "405B", "llama3_405b"),
    "deepseek-v3": ("deepseek_v3", "671B", "deepseek_v3_671b"),
    "qwen3-0.6b": ("qwen3", "0.6B", "qwen3_0_6b"),
    "qwen3-1.7b": ("qwen3", "1.7B", "qwen3_1_7b"),
    "qwen3-14b": ("qwen3", "14B", "qwen3_14b"),
    "qwen3-32b": ("qwen3", "32B", "qwen3_32b"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B", "qwen3_30b_a3b"),
}
SCHEDULES: Final = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zb-interleaved": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
SINGLE: Final = ("1f1b", "gpipe")  # one stage a rank; the others have two
ROTATIONS: Final = {"ring": "alltoall", "all-gather": "allgather"}
LIGHTER: Final = 8  # most layers by which an end is lighter, that are tried
OPTIMIZERS: Final = {"adamw": "AdamW", "adam": "Adam"}
ONLY_02: Final = (  # of release 0.3 no more
    "context_parallel_rotate_method",
    "expert_tensor_parallel_degree",
    "enable_async_tensor_parallel",
)


def write_torchtitan(run: Run) -> Written:
    """The TOML of release 0.2, and the Python of release 0.3."""
    name = run.job.model
    if name not in FLAVORS or run.job.spec != model(name).spec:
        raise Unsupported(
            f"--export torchtitan: it has no flavor of {name}; known here are "
            f"{', '.join(FLAVORS)}"
        )
    _require_optimizer(run)
    tables = _tables(run)
    train = ("-m", "torchtitan.train", "--job.config_file", FILE)
    command = ("torchrun", *nodes_of(run), *train)
    about = (
        f"{run.words}\ntorchtitan up to release 0.2.2: {' '.join(command)}\n"
        f"(from release 0.3 on: --module {MODULE} --config config)"
    )
    return Written(
        files={FILE: toml_text(tables, about), f"{MODULE}.py": _python(run, tables)},
        command=command,
    )


def _require_optimizer(run: Run) -> None:
    if run.job.optimizer not in OPTIMIZERS:
        raise Unsupported(
            f"--export torchtitan: its optimizers are {', '.join(OPTIMIZERS)}, not "
            f"{run.job.optimizer}"
        )


def _tables(run: Run) -> dict[str, dict[str, Any]]:
    choice = run.choice
    name, flavor, _ = FLAVORS[run.job.model]
    compiled = run.options.framework != "torchtitan-eager"
    found: dict[str, dict[str, Any]] = {
        "job": {"dump_folder": "./outputs", "description": run.words},
        "model": {"name": name, "flavor": flavor, "hf_assets_path": "./assets"},
        "optimizer": {"name": OPTIMIZERS[run.job.optimizer], "lr": 3e-4},
        "training": {
            "local_batch_size": choice.micro_batch
            * (run.micro_batches if choice.pp > 1 else 1),
            "global_batch_size": run.job.global_batch,
            "seq_len": run.job.seq_len,
            "steps": 1000,
            **_precision(run),
            "enable_cpu_offload": choice.offload.parameters,
        },
        "parallelism": _parallelism(run),
        "activation_checkpoint": _recompute(run),
        "compile": {"enable": compiled},
    }
    if choice.precision in ("fp8", "mxfp8"):
        kind = "float8" if choice.precision == "fp8" else "mx"
        rowwise = "rowwise" in (run.options.framework or "")
        recipes = {
            "float8": "rowwise" if rowwise else "tensorwise",
            "mx": "mxfp8_cublas",
        }
        found["model"]["converters"] = [f"quantize.linear.{kind}"]
        found[f"quantize.linear.{kind}"] = {"recipe_name": recipes[kind]}
    return found


def _precision(run: Run) -> dict[str, Any]:
    name, zero = run.choice.precision, run.choice.zero
    if (name == "bf16" and zero == 0) or (name == "amp-bf16" and zero):
        raise Unsupported(
            "--export torchtitan: mixed_precision_param bfloat16 is autocast "
            "(--precision amp-bf16) with DDP, and 16-bit gathered weights (bf16) with "
            f"sharding, not {name} with ZeRO-{zero}"
        )
    if run.choice.gradient_format != "fp32" and name != "fp32":
        raise Unsupported(
            "--export torchtitan: gradients are reduced in float32 "
            f"(mixed_precision_reduce), not in {run.choice.gradient_format}"
        )
    kept = "float32" if name == "fp32" else "bfloat16"
    return {
        "dtype": "float32",
        "mixed_precision_param": kept,
        "mixed_precision_reduce": "float32",
    }


def _parallelism(run: Run) -> dict[str, Any]:
    choice = run.choice
    shard = choice.zero_group if choice.zero else 1
    if choice.zero and choice.dp > 1 and shard * choice.cp == 1:
        raise Unsupported(
            "--export torchtitan: data_parallel_shard_degree 1 is DDP, not ZeRO-"
            f"{choice.zero} over one rank; choose --zero 0, or a larger --zero-group"
        )
    found: dict[str, Any] = {
        "data_parallel_replicate_degree": choice.dp // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": {2: "never", 3: "always"}.get(
            choice.zero, "default"
        ),
        "tensor_parallel_degree": choice.tp,
        "enable_async_tensor_parallel": "async-tp" in (run.options.framework or ""),
        "pipeline_parallel_degree": choice.pp,
        "context_parallel_degree": choice.cp,
    }
    if choice.pp > 1:
        found["pipeline_parallel_schedule"] = SCHEDULES[choice.schedule]
        found["pipeline_parallel_microbatch_size"] = choice.micro_batch
        found |= _stages(run)
    if choice.cp > 1:
        found["context_parallel_rotate_method"] = ROTATIONS[choice.cp_kind]
    if run.job.has_experts:
        if choice.etp not in (1, choice.tp):
            raise Unsupported(
                "--export torchtitan: expert_tensor_parallel_degree is 1 or the "
                f"{choice.tp} of tensor parallelism, not {choice.etp}"
            )
        found["expert_parallel_degree"] = choice.ep
        found["expert_tensor_parallel_degree"] = choice.etp
    return found


def _stages(run: Run) -> dict[str, Any]:
    """Which layers each stage has: by how many the ends are lighter, or one by one."""
    counts, usual = run.counts, _usual_stages(run.choice.schedule)
    if run.choice.virtual_stages == usual:
        for first in range(LIGHTER):
            for last in range(LIGHTER):
                if _generated(sum(counts), len(counts), first, last) == counts:
                    return {
                        "pipeline_parallel_first_stage_less_layers": first,
                        "pipeline_parallel_last_stage_less_layers": last,
                    }
    parts, layer = [], 0
    for number, count in enumerate(counts):
        names = [f"layers.{layer + one}" for one in range(count)]
        before = ["tok_embeddings"] if number == 0 else []
        after = ["norm", "output"] if number == len(counts) - 1 else []
        parts.append(before + names + after)
        layer += count
    return {"module_fqns_per_model_part": parts}


def _usual_stages(schedule: str) -> int:
    return 1 if schedule in SINGLE else 2


def _generated(
    layers: int, stages: int, first: int, last: int
) -> tuple[int, ...] | None:
    """Layers of each stage as torchtitan's generate_llm_fqn_per_model_part shares them
    out: ends count as *first* and *last* layers; None where it refuses."""
    each, rest = divmod(layers + first + last, stages)
    if stages == 1:
        return (layers,)
    if each < max(first, last, 1):
        return None
    counts = [each + (number < rest) for number in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts)


def _recompute(run: Run) -> dict[str, Any]:
    name, some = run.choice.recompute, run.choice.recompute_layers
    if name == "none" or some == 0:
        return {"mode": "none"}
    if some is None:
        return {"mode": "full"}
    counts = set(run.counts)
    for each in range(2, max(counts) + 1):
        if all(count // each == some for count in counts):
            return {"mode": "selective", "selective_ac_option": str(each)}
    raise Unsupported(
        "--export torchtitan: selective_ac_option k recomputes every k-th layer of a "
        f"stage, which is never {some} of {', '.join(map(str, sorted(counts)))}; "
        "choose a --recompute-layers that is"
    )


def _python(run: Run, tables: dict[str, dict[str, Any]]) -> str:
    """The function that release 0.3 is given."""
    name, _, function = FLAVORS[run.job.model]
    recompute = tables["activation_checkpoint"]["mode"]
    lines = [
        f'"""{run.words}.',
        "",
        f"For torchtitan 0.3: -m torchtitan.train --module {MODULE} --config config",
        '"""',
        "",
        "from torchtitan.distributed.activation_checkpoint import FullAC",
        f"from torchtitan.models.{name}.config_registry import {function}",
        "",
        "",
        "def config():",
        f"    found = {function}()",
    ]
    for table in ("training", "parallelism"):
        lines += [
            f"    found.{table}.{key} = {value!r}"
            for key, value in tables[table].items()
            if key not in ONLY_02
        ]
    policy = "FullAC.Config()" if recompute == "full" else "None"
    if recompute == "selective":
        lines.append("    # Every k-th layer whole: release 0.3 has this no more.")
    if tables["parallelism"]["enable_async_tensor_parallel"]:
        lines.append("    found.compile.enable_async_tensor_parallel = True")
    lines += [
        f"    found.activation_checkpoint = {policy}",
        f"    found.compile.enable = {tables['compile']['enable']}",
        "    return found",
    ]
    return "\n".join(lines) + "\n"


def read_torchtitan(document: Fields, world: int | None) -> Foreign:
    """What a TOML of release 0.2 says; raises InvalidFile and Contradiction."""
    names = ("model", "training", "parallelism", "activation_checkpoint", "optimizer")
    about, training, parallel, again, optimizer = map(document.section, names)
    compiled = document.section("compile").switch("enable")
    named = _named(about)
    tp = parallel.count("tensor_parallel_degree", 1)
    pp = parallel.count("pipeline_parallel_degree", 1)
    cp = parallel.count("context_parallel_degree", 1)
    copies = parallel.count("data_parallel_replicate_degree", 1)
    shard = _shard(parallel, world, copies * tp * pp * cp)
    dp = None if shard is None else copies * shard
    zero = _zero(parallel, (pp, cp), copies, shard)
    layers: int | None = getattr(model(named).spec, "layers", None) if named else None
    stages = _read_stages(parallel, pp, layers)
    sizes, assumed, warnings = _batches(training, parallel, pp, dp)
    assumed |= _defaults(training, parallel, again)
    job = {
        "gpus": world or (dp and dp * tp * pp * cp),
        "seq_len": training.count("seq_len", 2048),
        "optimizer": _read_optimizer(optimizer),
        "precision": _read_precision(document, training, about, zero),
        "global_batch": sizes.pop("global_batch"),
    }
    recompute, lacks = _read_recompute(again, stages, layers, pp)
    framework = _framework(document, parallel, compiled)
    parts = (training, parallel)
    left = [
        f"{part.what.split(': ')[-1]}.{one}" for part in parts for one in part.left()
    ]
    quiet = [one for one in left if one.split(".")[-1] in QUIET]
    return Foreign(
        format=document.what,
        framework=framework,
        job=JobOptions(**job),
        pins=Pins(
            tp=tp,
            pp=pp,
            cp=cp,
            dp=dp,
            zero=zero,
            zero_group=shard if zero else None,
            sequence_parallel=tp > 1,
            **_read_context(parallel, cp),
            **_read_experts(parallel, named),
            **sizes,
            **stages,
            **recompute,
            **_read_offload(training),
        ),
        named=named,
        lacks={"gpus": "torchtitan's file does not say on how many; give it", **lacks},
        assumed=assumed,
        ignored=(*(name for name in document.left() if name in TABLES), *quiet),
        warnings=(
            *warnings,
            *(f"{one} is not priced" for one in left if one not in quiet),
            *(f"[{one}] is not priced" for one in document.left() if one not in TABLES),
        ),
    )


QUIET: Final = frozenset(
    (
        *(
            "dataset",
            "dataset_path",
            "steps",
            "max_norm",
            "gc_freq",
            "gc_debug",
            "seed",
        ),
        *("mixed_precision_reduce", "disable_loss_parallel", "deterministic"),
        *("dataloader", "pipeline_parallel_schedule_csv"),
        *("context_parallel_load_balancer", "context_parallel_rotate_method"),
    )
)
TABLES: Final = frozenset(
    (
        *("job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "debug"),
        *("validation", "memory_estimation", "fault_tolerance", "experimental"),
        *("quantize", "float8", "mx"),
    )
)


def _defaults(training: Fields, parallel: Fields, again: Fields) -> dict[str, Any]:
    """Values of torchtitan's that count because the file says nothing."""
    return {
        **training.defaults(
            seq_len=2048, local_batch_size=8, mixed_precision_param="bfloat16"
        ),
        **parallel.defaults(
            tensor_parallel_degree=1,
            pipeline_parallel_degree=1,
            fsdp_reshard_after_forward="default",
        ),
        **again.defaults(mode="selective"),
    }


def _named(about: Fields) -> str | None:
    name, flavor = about.word("name"), about.word("flavor")
    known = {(one, kind): key for key, (one, kind, _) in FLAVORS.items()}
    return known.get((name or "", flavor or ""))


def _shard(parallel: Fields, world: int | None, others: int) -> int | None:
    """Of data parallelism; -1 is what is left."""
    if str(parallel.values.get("data_parallel_shard_degree", -1)) != "-1":
        return parallel.count("data_parallel_shard_degree", 1)
    parallel.skip("data_parallel_shard_degree")
    return divided(parallel, world, others)


def _zero(
    parallel: Fields, degrees: tuple[int, int], copies: int, shard: int | None
) -> int:
    pp, cp = degrees
    after = parallel.word(
        "fsdp_reshard_after_forward", ("default", "always", "never"), "default"
    )
    if shard == 1 and copies > 1 and cp == 1:
        return 0
    if pp > 1 or (shard == cp == 1 and after == "default"):
        return 1  # a pipeline's stages keep what they gathered until the last pass
    return 2 if after == "never" else 3


def _batches(
    training: Fields, parallel: Fields, pp: int, dp: int | None
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    assumed: dict[str, Any] = {}
    warnings: list[str] = []
    local = training.count("local_batch_size", 8)
    if str(training.values.get("global_batch_size", -1)) == "-1":
        training.skip("global_batch_size")
        batch = None if dp is None else local * dp
        assumed["global_batch"] = batch
    else:
        batch = training.integer("global_batch_size")
    micro = parallel.count("pipeline_parallel_microbatch_size", 1)
    if pp == 1:
        return {"global_batch": batch, "micro_batch": local}, assumed, warnings
    if local % micro:
        raise Contradiction(
            f"{training.what}: local_batch_size {local} is no multiple of "
            f"pipeline_parallel_microbatch_size {micro}"
        )
    if dp is not None and batch is not None and batch > local * dp:
        warnings.append(
            f"a step has {batch // (local * dp)} pipelines one after the other "
            "(global_batch_size over local_batch_size × ranks); it is priced as one"
        )
    return {"global_batch": batch, "micro_batch": micro}, assumed, warnings


def _read_stages(parallel: Fields, pp: int, layers: int | None) -> dict[str, Any]:
    first = parallel.integer("pipeline_parallel_first_stage_less_layers", 1, zero=True)
    last = parallel.integer("pipeline_parallel_last_stage_less_layers", 1, zero=True)
    each = parallel.integer("pipeline_parallel_layers_per_stage")
    parts = parallel.raw("module_fqns_per_model_part")
    known = {value.lower(): key for key, value in SCHEDULES.items()}
    said = (parallel.word("pipeline_parallel_schedule") or "1F1B").lower()
    if pp == 1:
        return {}
    if said not in known:
        raise parallel.wrong(
            "pipeline_parallel_schedule", f"one of {', '.join(SCHEDULES.values())}"
        )
    schedule, counts = known[said], None
    virtual = _usual_stages(schedule)
    if parts is not None:
        counts = _listed(parallel, parts)
        virtual, rest = divmod(len(counts), pp)
        if rest:
            raise parallel.wrong("module_fqns_per_model_part", f"a multiple of {pp}")
    elif layers is not None:
        ends = (first or 0, last or 0)
        if each is not None:
            stages = -(-(layers + sum(ends)) // each)
            virtual = max(stages // pp, 1)
        counts = _generated(layers, pp * virtual, *ends)
        if counts is None:
            raise Contradiction(
                f"{parallel.what}: {layers} layers do not share out over "
                f"{pp * virtual} stages whose ends are {ends[0]} and {ends[1]} lighter"
            )
    found: dict[str, Any] = {"schedule": schedule, "virtual_stages": virtual}
    if counts is not None:
        found["stage_layers"] = ",".join(map(str, counts))
    return found


def _listed(parallel: Fields, parts: Any) -> tuple[int, ...]:
    wanted = "lists of module names"
    if not isinstance(parts, list) or not 0 < len(parts) <= 10_000:
        raise parallel.wrong("module_fqns_per_model_part", wanted)
    if not all(isinstance(part, list) for part in parts):
        raise parallel.wrong("module_fqns_per_model_part", wanted)
    return tuple(
        sum(str(name).startswith("layers.") for name in part) for part in parts
    )


def _read_recompute(
    again: Fields, stages: dict[str, Any], layers: int | None, pp: int
) -> tuple[dict[str, Any], dict[str, str]]:
    modes = ("none", "full", "selective", "memory_budget")
    mode = again.word("mode", modes, "selective")
    option = str(again.raw("selective_ac_option") or "2")
    if mode in ("none", "full"):
        return {"recompute": mode}, {}
    if mode == "memory_budget" or not option.isdigit() or len(option) > 6:
        why = (
            "activation_checkpoint.mode selective with option op keeps every second "
            "product, which nothing here is the like of; say what to price instead: "
            "none, selective or full"
        )
        return {}, {"recompute": why}
    each = max(int(option), 1)
    if each == 1 or layers is None:
        return {"recompute": "full"}, {}
    counts: Sequence[int] = [layers]
    if "stage_layers" in stages:
        counts = [int(one) for one in stages["stage_layers"].split(",")]
    return {"recompute": "full", "recompute_layers": max(counts) // each}, {}


def _read_context(parallel: Fields, cp: int) -> dict[str, Any]:
    known = {value: key for key, value in ROTATIONS.items()}
    found = parallel.word("context_parallel_rotate_method", known, "allgather")
    return {"cp_kind": known[found or "allgather"]} if cp > 1 else {}


def _read_experts(parallel: Fields, named: str | None) -> dict[str, Any]:
    ep = parallel.count("expert_parallel_degree", 1)
    etp = parallel.count("expert_tensor_parallel_degree", 1)
    sparse = named is not None and getattr(model(named).spec, "moe", None) is not None
    return {"ep": ep, "etp": etp} if sparse or ep > 1 else {}


def _read_offload(training: Fields) -> dict[str, Any]:
    if not training.switch("enable_cpu_offload"):
        return {}
    return {"offload": "optimizer,parameters", "offload_to": "cpu"}


def _read_optimizer(optimizer: Fields) -> str:
    known = {value.lower(): key for key, value in OPTIMIZERS.items()}
    name = (optimizer.word("name") or "AdamW").lower()
    if name not in known:
        raise optimizer.wrong("name", f"one of {', '.join(OPTIMIZERS.values())}")
    return known[name]


def _read_precision(
    document: Fields, training: Fields, about: Fields, zero: int
) -> str:
    types = ("float32", "bfloat16")
    if training.word("dtype", types, "float32") == "bfloat16":
        raise Unsupported(
            f"{training.what}: dtype bfloat16 keeps no float32 copy of the weights, "
            "which is not priced; float32 with mixed_precision_param bfloat16 is"
        )
    converters = " ".join(about.words("converters"))
    if "mx" in converters:
        return "mxfp8"
    if "float8" in converters:
        return "fp8"
    kept = training.word("mixed_precision_param", types, "bfloat16")
    return "fp32" if kept == "float32" else "bf16" if zero else "amp-bf16"


def _framework(document: Fields, parallel: Fields, compiled: bool) -> str:
    """Which of the kinds of torchtitan it is."""
    linear = document.section("quantize").section("linear").section("float8")
    rowwise = "rowwise" in str(linear.raw("recipe_name"))
    if parallel.switch("enable_async_tensor_parallel"):
        return f"{FRAMEWORK}-async-tp{'-rowwise' if rowwise else ''}"
    if not compiled:
        return f"{FRAMEWORK}-eager"
    return f"{FRAMEWORK}-rowwise" if rowwise else FRAMEWORK
