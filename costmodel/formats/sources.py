"""`--from`: which format a file is in, and what it says.

By its content: a shell script or a list of arguments (Megatron-LM, Megatron-DeepSpeed,
our own `execute`, under Slurm or not), JSON (DeepSpeed, accelerate, the Trainer, our
own layout file), TOML (torchtitan), YAML (accelerate, Kubernetes; it needs PyYAML, and
reads plain values alone), Python (NeMo, Colossal-AI), which is never run.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from costmodel.formats.deepspeed import read_deepspeed
from costmodel.formats.fields import Fields
from costmodel.formats.huggingface import read_accelerate, read_trainer
from costmodel.formats.launchers import MANIFESTS, read_manifest
from costmodel.formats.megatron import read_megatron
from costmodel.formats.megatron_deepspeed import read_megatron_deepspeed
from costmodel.formats.python_recipes import read_python
from costmodel.formats.setup import Foreign
from costmodel.formats.shell import Script, arguments, read_script
from costmodel.formats.torchtitan import read_torchtitan
from costmodel.simulation import read_layout_file
from profiles.commandline import JobOptions
from profiles.errors import Contradiction, InvalidFile
from profiles.files import names_a_file, read_text, require_package, shown

MOST_BYTES: Final = 256 * 1024  # of a configuration; a script's quotes are looked for
MOST_DEPTH: Final = 32
_MEGATRON: Final = ("num-layers", "tensor-model-parallel-size", "hidden-size")
_DEEPSPEED: Final = ("zero-stage", "deepspeed_config", "ds-sequence-parallel-size")
_OURS: Final = "meshwright/layout"
_OF_MODELS: Final = {"model_type", "family", "layers", "hidden"}


def is_layout_file(path: Path) -> bool:
    """Whether *path* is a layout file of our own; raises InvalidFile."""
    if path.suffix.lower() != ".json":
        return False
    document = _json(read_text(path, what="file", most_bytes=64 * MOST_BYTES), path)
    return isinstance(document, dict) and document.get("format") == _OURS


class Subject(StrEnum):
    """What a word on a command line is, which no option stands before."""

    MODEL = "model"
    LAYOUT = "layout"  # a file of our own
    FOREIGN = "foreign"  # a file of another framework


def subject_of(word: str) -> Subject:
    """A model by name, file or factory, or a file that holds a layout.

    Raises InvalidFile for a file that cannot be read.
    """
    path = Path(word)
    if not names_a_file(word) or path.is_dir():
        return Subject.MODEL
    if path.suffix.lower() != ".json":
        return Subject.FOREIGN
    if is_layout_file(path):
        return Subject.LAYOUT
    document = _json(read_text(path, what="file", most_bytes=64 * MOST_BYTES), path)
    known = isinstance(document, dict) and _OF_MODELS & document.keys()
    return Subject.MODEL if known else Subject.FOREIGN


def read_foreign(path: Path, gpus: int | None = None) -> Foreign:
    """What a file of another framework says; *gpus* counts where it does not.

    Raises InvalidFile for what is none, Unsupported for what is not priced,
    Contradiction for what cannot be.
    """
    text = read_text(path, what="file", most_bytes=MOST_BYTES)
    suffix, called = path.suffix.lower(), shown(path.name)
    if suffix == ".py":
        return read_python(text, called, gpus)
    if suffix == ".toml":
        return read_torchtitan(Fields(_toml(text, path), called), gpus)
    if suffix in (".yaml", ".yml"):
        return _of_document(_yaml(text, path), path, gpus)
    if suffix == ".json" or text.lstrip()[:1] == "{":
        return _of_document(_json(text, path), path, gpus)
    return _of_script(read_script(text, called), path, gpus)


def _of_document(document: Any, path: Path, gpus: int | None) -> Foreign:
    called = shown(path.name)
    if not isinstance(document, dict):
        raise InvalidFile(f"{called} must hold an object with named values")
    fields = Fields({str(key): one for key, one in document.items()}, called)

    def beside(name: str) -> Fields | None:
        return _beside(path, name)

    if fields.values.get("kind") in MANIFESTS:
        return _of_script(read_manifest(fields), path, gpus)
    if "distributed_type" in fields or "compute_environment" in fields:
        return read_accelerate(fields, gpus, beside)
    if "output_dir" in fields or "per_device_train_batch_size" in fields:
        return read_trainer(fields, gpus, beside)
    known = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu")
    if any(name in fields for name in (*known, "fp16", "bf16")):
        return read_deepspeed(fields, gpus)
    if "parallelism" in fields or "training" in fields:
        return read_torchtitan(fields, gpus)
    raise InvalidFile(
        f"{called} is no format that is read here: DeepSpeed's, accelerate's, the "
        "Trainer's or torchtitan's configuration, Megatron's arguments, a manifest of "
        f"Kubeflow's ({', '.join(MANIFESTS)}), or a layout file"
    )


def _beside(path: Path, name: str) -> Fields | None:
    """The JSON file called *name* in the folder of *path*; None where it is not there.

    A stranger's file may name any path: no other folder is looked in.
    """
    plain = Path(name).name
    file = path.parent / plain
    if plain in ("", ".", "..") or not file.is_file():
        return None
    document = _json(read_text(file, what="file", most_bytes=MOST_BYTES), file)
    if not isinstance(document, dict):
        raise InvalidFile(f"{shown(plain)} must hold an object with named values")
    return Fields(document, shown(plain))


def _of_script(
    script: Script, path: Path, gpus: int | None, *, follows: bool = True
) -> Foreign:
    """The command with Megatron's arguments among all of a script's, or what it starts;
    whether it *follows* a script that it starts."""
    options: dict[str, object] = {}
    for _, found in map(arguments, script.commands):
        if sum(name in found for name in _MEGATRON) > sum(
            name in options for name in _MEGATRON
        ):
            options = found
    if not any(name in options for name in _MEGATRON):
        return _started(script, path, gpus, follows=follows)
    world = _world(script, options) or gpus
    own = {name: one for name, one in options.items() if name not in _LAUNCH}
    fields = Fields(own, script.what)
    foreign = _megatron(script, fields, path, world)
    warnings = tuple(
        f"what {word} holds is not known: the script does not set it"
        for word in dict.fromkeys(_open(options))
    )
    return replace(foreign, warnings=(*warnings, *foreign.warnings))


def _started(script: Script, path: Path, gpus: int | None, *, follows: bool) -> Foreign:
    """What the file says that a launcher starts: a layout file of our own, or a script,
    on as many processes as the launcher says."""
    named, words = _named(script, follows=follows)
    nodes, each = _processes(script, arguments(words)[1])
    file = path.parent / Path(named).name
    if not file.is_file():
        raise InvalidFile(
            f"{script.what} starts {shown(named)}, which is not beside it; put the "
            "file that it means there, under that name"
        )
    if file.suffix == ".json":
        size = read_layout_file(file).layout.gpus
        found = Foreign(
            format=script.what,
            framework="meshwright",
            job=JobOptions(gpus=size),
            layout=file,
        )
    else:
        world = each and each * (nodes or 1)
        inner = read_script(
            read_text(file, what="file", most_bytes=MOST_BYTES), shown(file.name)
        )
        found = _of_script(inner, file, world or gpus, follows=False)
    _require_as_many(script.what, (nodes, each), file.name, found.job.gpus)
    return found


def _named(script: Script, *, follows: bool) -> tuple[str, list[str]]:
    """The layout file after `execute`, else the script after `bash`, and the words of
    the command; raises InvalidFile where there is neither."""
    found = None
    for words in script.commands:
        for before, word in pairwise([*words, ""]):
            called = Path(before).name
            if called == "execute" and not word.endswith(".json"):
                raise InvalidFile(
                    f"{script.what} has {shown(word)} after execute, which must be the "
                    "layout file; write its name there, such as layout.json"
                )
            if called == "execute":
                return word, words
            if follows and called in ("bash", "sh") and word.endswith(".sh"):
                found = word, words
    if found is None:
        raise InvalidFile(
            f"{script.what} has no command with Megatron's arguments, such as "
            "--num-layers, nor one with execute LAYOUT.json; give a script that runs "
            "pretrain_gpt.py, or its arguments, or one that runs a layout file"
        )
    return found


def _require_as_many(
    what: str, counts: tuple[int | None, int | None], file: str, gpus: int | None
) -> None:
    """Raise Contradiction where a launcher's nodes × processes are not *gpus*."""
    nodes, each = counts
    if gpus is None:
        return
    if each is not None and (nodes or 1) * each != gpus:
        said = f"{nodes or 1} nodes × {each} processes = {(nodes or 1) * each}"
    elif nodes is not None and gpus % nodes:
        said = f"{nodes} nodes"
    else:
        return
    raise Contradiction(
        f"{what} starts {said}, and {shown(file)} is of {gpus} GPUs; make them the same"
    )


def _megatron(script: Script, fields: Fields, path: Path, world: int | None) -> Foreign:
    if not any(name in fields for name in _DEEPSPEED):
        return read_megatron(fields, world)
    named = fields.word("deepspeed_config")
    configured = None
    if named is not None:
        inside = script.documents.get(named)
        if inside is None:
            for key, text in script.documents.items():
                if script.expanded(key) == named:
                    inside = text
        if inside is not None:
            document = _json(inside, Path(named))
            if not isinstance(document, dict):
                raise InvalidFile(f"{shown(named)} must hold an object")
            configured = Fields(document, shown(Path(named).name))
        else:
            configured = _beside(path, named)
    return read_megatron_deepspeed(fields, world, configured)


def _open(options: Mapping[str, object]) -> Iterator[str]:
    """Variables that stand behind a value, where more arguments could be."""
    for value in options.values():
        for word in value[1:] if isinstance(value, tuple) else ():
            if word.startswith("$"):
                yield word


_LAUNCH: Final = (
    *("nproc_per_node", "nproc-per-node", "nnodes", "node_rank", "node-rank"),
    *("master_addr", "master-addr", "master_port", "master-port", "num_nodes"),
    *("num_gpus", "hostfile", "rdzv-endpoint", "rdzv_endpoint", "rdzv-backend"),
    *("rdzv_backend", "rdzv-id", "rdzv_id", "max_restarts", "tee", "role", "launcher"),
    *(
        "ntasks-per-node",
        "nodes",
        "gpus-per-node",
        "ntasks",
        "label",
        "export",
        "jobid",
    ),
    *("gres", "container-image", "container-mounts", "cpus-per-task", "max-restarts"),
)


def _world(script: Script, options: Mapping[str, object]) -> int | None:
    """Processes: nodes times those of a node, as a launcher is told; None where it is
    not."""
    nodes, each = _processes(script, options)
    each = each or Fields(script.slurm, script.what).integer("ntasks-per-node")
    return each and each * (nodes or 1)


def _processes(
    script: Script, options: Mapping[str, object]
) -> tuple[int | None, int | None]:
    """Nodes, and processes of a node; None for what a launcher is not told."""
    each = _first(script, options, ("nproc_per_node", "nproc-per-node", "num_gpus"))
    nodes = _first(script, options, ("nnodes", "num_nodes"))
    header = Fields(script.slurm, script.what)
    if nodes is None:
        nodes = header.integer("nodes")
    if each is None:
        each = header.integer("gpus-per-node") or _gres(header)
    return nodes, each


def _gres(header: Fields) -> int | None:
    """Slurm's `--gres=gpu:8`, or `gpu:a100:8`."""
    parts = str(header.values.get("gres", "")).split(":")
    number = parts[-1]
    if parts[0] != "gpu" or not number.isdigit() or len(number) > 4:
        return None
    return int(number) or None


def _first(
    script: Script, options: Mapping[str, object], names: tuple[str, ...]
) -> int | None:
    for name in names:
        value = options.get(name)
        if isinstance(value, tuple):  # the script's name follows
            value = value[0]
        if isinstance(value, str) and value.isdigit() and len(value) < 9:
            return int(value)
    return None


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        reason = str(error) or "nested too deeply"
        raise InvalidFile(f"{shown(path)} is not whole JSON: {reason}") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _toml(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) or "nested too deeply"
        raise InvalidFile(f"{shown(path)} is not whole TOML: {reason}") from None


def _yaml(text: str, path: Path) -> Any:
    require_package("yaml", f"reading {shown(path)}", extra="yaml")
    import yaml

    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise InvalidFile(
                    f"{shown(path)} has an alias (*{event.anchor}), and values that "
                    "stand for others are not read; write them out"
                )
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        reason = " ".join(str(error).split()) or "nested too deeply"
        raise InvalidFile(f"{shown(path)} is not whole YAML: {reason[:200]}") from None
