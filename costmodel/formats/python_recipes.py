"""Python that other frameworks are given, in both directions.

NeMo           a Megatron-Bridge recipe: fields of `ConfigContainer`
               (megatron/bridge/training/config.py, release 0.3.1), and Megatron-Core's
               `TransformerConfig`, `DistributedDataParallelConfig`, `OptimizerConfig`
Colossal-AI    arguments of `HybridParallelPlugin`, `MoeHybridParallelPlugin` and
               `GeminiPlugin` (colossalai/booster/plugin, release 0.5)

Python is read as a tree and never run: arguments of the calls above, and what is set by
`config.section.name = value`, where the value is written out. What is computed, or set
under a condition, is refused where it is needed, with its line.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from costmodel.formats.fields import Fields
from costmodel.formats.megatron import (
    CP_KINDS,
    FP8,
    STRATEGIES,
    cut_arguments,
    optimizer_arguments,
    read_megatron,
    recompute_arguments,
)
from costmodel.formats.megatron_shape import require_decoder, shape_arguments
from costmodel.formats.setup import Foreign, Run, divided
from costmodel.formats.text import Written, nodes_of
from costmodel.options import Pins
from profiles.commandline import JobOptions
from profiles.errors import InvalidFile, Unsupported

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
    splits = run.choice.sequence_parallel and run.choice.tp > 1
    hides = splits and "tp" in run.hides(FRAMEWORK)
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
        f"Booster(plugin=plugin()).boost({_prepared(run)}, …).",
        f"{run.micro_batches} micro-batches a step.",
        '"""',
        "",
        f"from colossalai.booster.plugin import {name}",
        "",
        "",
        "def plugin():",
        f"    return {name}(",
        *(f"        {key}={_value(one)}," for key, one in arguments.items()),
        "    )",
        *(_PREPARE if run.choice.recompute != "none" else ()),
    ]
    return Written(
        files={"colossalai_plugin.py": "\n".join(lines) + "\n"},
        command=("torchrun", *nodes_of(run), "train.py"),
    )


_PREPARE: Final = (
    *("", "", "def prepare(model):"),
    *("    model.gradient_checkpointing_enable()", "    return model"),
)


def _prepared(run: Run) -> str:
    return "model" if run.choice.recompute == "none" else "prepare(model)"


def _refuse(run: Run) -> None:
    """Raise Unsupported for what the plugins cannot say, or is not written here."""
    choice = run.choice
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
    if run.job.has_experts and choice.etp != choice.tp:
        raise Unsupported(
            "--export colossalai: experts are split as the rest is, by tp_size; choose "
            f"--etp {choice.tp}"
        )
    if len(set(run.counts)) > 1:
        raise Unsupported(
            "--export colossalai: stages of unlike layers are not written here; choose "
            "--pp that divides the layers"
        )
    if choice.cp > 1 and choice.sequence_parallel and choice.tp > 1:
        raise Unsupported(
            "--export colossalai: it has one sequence_parallelism_mode, of context "
            "parallelism or of tensor parallelism; choose --no-sequence-parallel or "
            "--cp 1"
        )


def _plugin(run: Run) -> tuple[str, dict[str, Any]]:
    _refuse(run)
    choice = run.choice
    precision = choice.precision if choice.precision in ("fp16", "bf16") else "fp32"
    if choice.zero == 3:
        return "GeminiPlugin", {
            "tp_size": choice.tp,
            "precision": precision,
            "offload_optim_frac": float(choice.offload.optimizer),
            "offload_param_frac": float(choice.offload.parameters),
            "enable_gradient_accumulation": run.micro_batches > 1,
            "enable_flash_attention": choice.flash_attention,
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


PROVIDER: Final = "GPTModelProvider"
PLUGINS: Final = ("HybridParallelPlugin", "MoeHybridParallelPlugin", "GeminiPlugin")
SECTIONS: Final = {  # classes of Megatron-Bridge, by their field of ConfigContainer
    PROVIDER: "model",
    "TrainingConfig": "train",
    "DistributedDataParallelConfig": "ddp",
    "OptimizerConfig": "optimizer",
    "GPTDatasetConfig": "dataset",
    "MixedPrecisionConfig": "mixed_precision",
    "CommOverlapConfig": "comm_overlap",
    "ConfigContainer": "",
}
PRECISIONS: Final = {recipe: name for name, recipe in RECIPES.items()} | {
    "bf16_with_fp8_delayed_scaling_mixed": "fp8",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8",
}
CODE: Final = {  # names that stand for a value
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float32": "fp32",
    **{
        f"{where}.{name}": name
        for where in ("F", "torch.nn.functional")
        for name in ("silu", "gelu")
    },
    **{
        f"AttnBackend.{name}": name
        for name in ("flash", "fused", "unfused", "local", "auto")
    },
}
SETS: Final = (ast.Assign, ast.AugAssign, ast.AnnAssign)
CONDITIONS: Final = (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.Match)
SPELLED: Final = {one: key for key, one in NAMES.items() if one is not None} | {
    "bucket_size": "ddp-bucket-size",
    "sequence_length": "seq-length",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
}
# What says nothing beyond the rest, or is said otherwise in Megatron's arguments.
OTHERWISE: Final = (
    *("gated_linear_unit", "add_bias_linear", "activation_func", "pipeline_dtype"),
    *("share_embeddings_and_output_weights", "params_dtype", "moe_layer_freq"),
    *("autocast_dtype", "bf16", "fp16", "grad_reduce_in_fp32"),
)
IGNORED: Final = (  # of plugins, without effect on cost
    *("max_norm", "initial_scale", "min_scale", "max_scale", "growth_factor"),
    *("backoff_factor", "growth_interval", "hysteresis", "verbose", "pin_memory"),
    *("parallel_output", "enable_gradient_accumulation"),
)


class _Computed:
    """Stands for a value that is not written out."""


class _Said(Fields):
    """Values of *nodes* by name; those that are computed are refused where they are
    taken, with their line."""

    def __init__(self, nodes: Mapping[str, ast.expr | None], what: str) -> None:
        found = {name: _literal(node) for name, node in nodes.items()}
        super().__init__(found, what)
        self.places = {
            name: f"line {getattr(node, 'lineno', 0)}: {name}"
            for name, node in nodes.items()
        }

    def raw(self, name: str) -> Any:
        found = super().raw(name)
        if isinstance(found, _Computed):
            raise InvalidFile(
                f"{self.what}: {self.places[name]} is computed, or set elsewhere or "
                "under a condition, and Python is not run; write its value there"
            )
        return found

    def spelled(self) -> _Said:
        """The same with Megatron's names."""
        again = _Said({}, self.what)
        for name, value in self.values.items():
            if name not in OTHERWISE:
                key = SPELLED.get(name, name.replace("_", "-"))
                again.values[key], again.places[key] = value, self.places[name]
        return again


def _literal(node: ast.expr | None) -> Any:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _literal(node.operand)
        return -inner if type(inner) in (int, float) else _Computed()
    if isinstance(node, ast.List | ast.Tuple):
        several = [one.value for one in node.elts if isinstance(one, ast.Constant)]
        return several if len(several) == len(node.elts) else _Computed()
    if isinstance(node, ast.Constant):
        return node.value
    found = CODE.get(".".join(_chain(node)))
    return _Computed() if found is None else found


def _chain(node: ast.AST | None) -> tuple[str, ...]:
    """The names of `a.b.c`; none for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


def read_python(text: str, what: str, gpus: int | None) -> Foreign:
    """What Python with one of the calls above says; raises InvalidFile with the line of
    what is not plain, Unsupported, Contradiction."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        raise InvalidFile(f"{what} is not whole Python{where}") from None
    nodes = list(ast.walk(tree))
    called = [node for node in nodes if isinstance(node, ast.Call)]
    calls = [one for one in called if _name(one) in (PROVIDER, *PLUGINS)]
    if len(calls) != 1:
        lines = ", ".join(str(one.lineno) for one in calls) or "none"
        raise InvalidFile(
            f"{what} must have one call of {PROVIDER} (NeMo), or of "
            f"{', '.join(PLUGINS)} (Colossal-AI); it has them in lines: {lines}"
        )
    if _name(calls[0]) == PROVIDER:
        recipe = _Recipe.of(_scope(nodes, tree, calls[0]), what)
        recipe.add_others(nodes)
        return _read_nemo(recipe, gpus)
    again = any(_name(one) == "gradient_checkpointing_enable" for one in called)
    conditional = calls[0] in _under_conditions(tree)
    fields = _Said(dict(_keywords(calls[0], what, conditional=conditional)), what)
    return _read_plugin(_name(calls[0]), fields, gpus, again=again)


def _name(call: ast.Call) -> str:
    return (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else (call.func.id if isinstance(call.func, ast.Name) else "")
    )


def _scope(nodes: list[ast.AST], tree: ast.Module, call: ast.Call) -> ast.AST:
    """The innermost function that holds *call*, or the module."""
    inside = [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef) and call in ast.walk(node)
    ]
    return inside[-1] if inside else tree


def _under_conditions(scope: ast.AST) -> set[ast.AST]:
    return {
        inner
        for node in ast.walk(scope)
        if isinstance(node, CONDITIONS)
        for inner in ast.walk(node)
    }


def _keywords(
    call: ast.Call, what: str, *, conditional: bool
) -> Iterator[tuple[str, ast.expr | None]]:
    """Arguments by name; raises InvalidFile for those that have none."""
    if call.args or any(word.arg is None for word in call.keywords):
        raise InvalidFile(
            f"{what}: line {call.lineno}: {_name(call)} has arguments without a name "
            "(or **); write each as name=value"
        )
    for word in call.keywords:
        unsure = ast.Name(id="?", lineno=word.lineno)
        yield word.arg or "", unsure if conditional else word.value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """What is said of each section of ConfigContainer, by name; of the container itself
    under no name."""

    what: str
    sections: dict[str, dict[str, ast.expr | None]] = field(default_factory=dict)
    nodes: set[ast.AST] = field(default_factory=set)  # that set them

    @classmethod
    def of(cls, scope: ast.AST, what: str) -> _Recipe:
        """In the order of *scope*'s lines: the last value counts."""
        found, aliases = cls(what=what), dict[str, str]()
        unsure = _under_conditions(scope)
        nodes = [node for node in ast.walk(scope) if hasattr(node, "lineno")]
        for node in sorted(nodes, key=lambda one: (one.lineno, -_width(one))):
            if isinstance(node, ast.Call) and _name(node) in SECTIONS:
                words = _keywords(node, what, conditional=node in unsure)
                found._of(SECTIONS[_name(node)]).update(words)
            elif isinstance(node, SETS):
                plain = node not in unsure and not isinstance(node, ast.AugAssign)
                value = node.value if plain else ast.Name(id="?", lineno=node.lineno)
                for names in _targets(node):
                    found._set(names, value, aliases)
                found.nodes.add(node)
        return found

    def add_others(self, nodes: list[ast.AST]) -> None:
        """What is set elsewhere in the file: in which order is not known."""
        for node in nodes:
            if isinstance(node, SETS) and node not in self.nodes:
                for names in _targets(node):
                    if len(names) == 3 and names[1] in SECTIONS.values():
                        self._set(names, ast.Name(id="?", lineno=node.lineno), {})

    def _of(self, section: str) -> dict[str, ast.expr | None]:
        return self.sections.setdefault(section, {})

    def _set(
        self, names: tuple[str, ...], value: ast.expr | None, aliases: dict[str, str]
    ) -> None:
        if len(names) == 1 and isinstance(value, ast.Call):
            section = SECTIONS.get(_name(value))
            if section is not None:
                aliases[names[0]] = section
        elif len(names) == 2:
            self._of(aliases.get(names[0], ""))[names[1]] = value
        elif len(names) == 3:
            self._of(names[1])[names[2]] = value

    def said(self, *sections: str) -> _Said:
        """The values of *sections* together."""
        found: dict[str, ast.expr | None] = {}
        for section in sections:
            found |= self.sections.get(section, {})
        return _Said(found, self.what)


def _targets(node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> list[tuple[str, ...]]:
    several = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [_chain(target) for target in several]


def _width(node: Any) -> int:
    """Outer nodes of a line before inner ones."""
    return int(getattr(node, "end_lineno", 0) or 0) * 10_000 + int(
        getattr(node, "end_col_offset", 0) or 0
    )


def _read_nemo(recipe: _Recipe, gpus: int | None) -> Foreign:
    """A recipe as the arguments of Megatron-LM that say the same."""
    said = recipe.said("comm_overlap", "optimizer", "ddp", "train", "dataset", "model")
    fields = said.spelled()
    gated, kind = said.switch("gated_linear_unit"), said.word("activation_func")
    if (gated, kind or "gelu") not in ((True, "silu"), (False, "gelu")):
        raise Unsupported(
            f"{recipe.what}: an MLP with {'gated ' if gated else ''}{kind or 'gelu'} "
            "is not read here; gelu, or gated silu, is"
        )
    switches = {
        "swiglu": gated,
        "disable-bias-linear": not said.switch("add_bias_linear", default=True),
        "untie-embeddings-and-output-weights": not said.switch(
            "share_embeddings_and_output_weights", default=True
        ),
        "group-query-attention": "num_query_groups" in said,
        **_read_mixed(recipe),
    }
    fields.values |= {name: one for name, one in switches.items() if one}
    if not said.switch("sequence_parallel"):  # CommOverlapConfig turns it off
        fields.values["tp-comm-overlap"] = False
    if gated and "ffn-hidden-size" not in fields:
        fields.values["ffn-hidden-size"] = 4 * said.count("hidden_size", 1)
    every = said.raw("moe_layer_freq")
    if every is not None:
        listed = isinstance(every, list)
        marked = "+".join(f"[{one}]" for one in every) if listed else str(every)
        fields.values["moe-layer-freq"] = f"({marked})" if listed else marked
    found = read_megatron(fields, gpus, FRAMEWORK)
    lacks = {"gpus": "a recipe does not say how many processes there are; give it"}
    job = found.job
    if "mixed_precision" not in recipe.sections.get("", {}):
        job = replace(job, precision=None, grad_dtype=None)
        lacks["precision"] = "the recipe does not set mixed_precision; give it"
    return replace(
        found,
        job=job,
        lacks={**found.lacks, **lacks},
        ignored=tuple(one[2:].replace("-", "_") for one in found.ignored),
    )


def _read_mixed(recipe: _Recipe) -> dict[str, Any]:
    """Megatron's arguments of `mixed_precision`: a recipe's name, or a call of it."""
    node = recipe.sections.get("", {}).get("mixed_precision")
    within, said = recipe.said("mixed_precision"), recipe.said("ddp")
    named: Any = node
    if isinstance(node, ast.Call) and _name(node) == "get_mixed_precision_config":
        named = node.args[0] if len(node.args) == 1 else node
    elif isinstance(node, ast.Call) and not node.args and not node.keywords:
        named = ast.Constant(value=_name(node), lineno=node.lineno)
    own = _Said({"mixed_precision": named}, recipe.what)
    name = own.word("mixed_precision", PRECISIONS)
    if name is None:
        return {}
    precision = PRECISIONS[name]
    in_fp32 = said.switch("grad_reduce_in_fp32", default=precision != "fp16")
    if "mixed_precision" in recipe.sections.get("", {}):  # it writes over ddp's
        in_fp32 = within.switch("grad_reduce_in_fp32", default=precision != "fp16")
    found: dict[str, Any] = {"fp16" if precision == "fp16" else "bf16": True}
    if in_fp32:
        found["accumulate-allreduce-grads-in-fp32"] = True
    elif precision != "fp16":
        found["grad-reduce-in-bf16"] = True
    if precision in FP8:
        found["fp8-format"], found["fp8-recipe"] = FP8[precision]
    if precision == "nvfp4":
        found["fp4-format"] = "e2m1"
    return found


def _read_plugin(name: str, fields: _Said, gpus: int | None, *, again: bool) -> Foreign:
    """Arguments of a plugin; the model and the batch are the training script's."""
    tp, pp = fields.count("tp_size", 1), fields.count("pp_size", 1)
    mode = fields.word("sequence_parallelism_mode", (*MODES.values(), "split_gather"))
    split = fields.switch("enable_sequence_parallelism")
    kinds = {one: kind for kind, one in MODES.items()}
    cp = fields.count("sp_size", 1) if split and mode in kinds else 1
    dp, copies = divided(fields, gpus, tp, pp, cp), fields.count("extra_dp_size", 1)
    all_kernels = fields.switch("enable_all_optimization")
    precision = fields.word("precision", ("fp16", "bf16", "fp32"), "fp16")
    script = "the plugin does not say it, the training script does; give it"
    lacks = dict.fromkeys(("gpus", "micro_batch", "global_batch"), script)
    micro, chunks = (
        fields.integer("microbatch_size"),
        fields.count("num_model_chunks", 1),
    )
    styles = {one: style for style, one in STYLES.items()}
    style = fields.word("pp_style", styles, "1f1b") or "1f1b"
    whole = name == "GeminiPlugin"
    pins = Pins(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        ep=fields.integer("ep_size"),
        zero=3 if whole else fields.integer("zero_stage", 0, zero=True),
        zero_group=divided(fields, dp, copies) if copies > 1 else None,
        micro_batch=micro,
        schedule=styles[style] if pp > 1 else None,
        virtual_stages=chunks if pp > 1 else None,
        cp_kind=kinds[mode] if mode in kinds and cp > 1 else None,
        sequence_parallel=split and tp > 1 and (whole or mode not in kinds),
        flash_attention=fields.switch("enable_flash_attention") or all_kernels,
        recompute="full" if again else None,
        **_read_offload(fields),
    )
    left = list(fields.left())
    return Foreign(
        format=fields.what,
        framework="colossal-ai",
        job=JobOptions(gpus=gpus, precision=precision),
        pins=pins,
        lacks=lacks,
        ignored=tuple(one for one in left if one in IGNORED),
        warnings=tuple(
            f"{one} is not priced: the answer is that of a run without it"
            for one in left
            if one not in IGNORED
        ),
    )


def _read_offload(fields: Fields) -> dict[str, Any]:
    parts = ["optimizer"] if fields.switch("cpu_offload") else []
    for part, name in (("optimizer", "optim"), ("parameters", "param")):
        fraction = fields.number(f"offload_{name}_frac", 0.0)
        if fraction not in (0.0, 1.0):
            raise Unsupported(
                f"{fields.what}: offload_{name}_frac {fraction} is not priced; 0 and 1 "
                "are"
            )
        if fraction:
            parts.append(part)
    return {"offload": ",".join(parts), "offload_to": "cpu"} if parts else {}
