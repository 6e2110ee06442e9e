"""`--export`: the targets, what each cannot express, and the files it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from costmodel.formats import (
    deepspeed,
    huggingface,
    megatron,
    megatron_deepspeed,
    python_recipes,
    torchtitan,
)
from costmodel.formats.launchers import write_kubernetes, write_slurm, write_torchrun
from costmodel.formats.setup import Run
from costmodel.formats.text import Written
from costmodel.layout import AS_IT_IS
from costmodel.support import capabilities
from profiles.errors import Contradiction, InvalidQuestion, UnknownName, Unsupported
from profiles.files import require_folder, write_text

Write = Callable[[Run], Written]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """How a run is written, and the framework of the capabilities table that says what
    can be; None where the target asks itself."""

    write: Write
    framework: str | None = None


TARGETS: Final[Mapping[str, Target]] = {
    "megatron": Target(write=megatron.write_megatron, framework="megatron-core"),
    "megatron-deepspeed": Target(
        write=megatron_deepspeed.write_megatron_deepspeed,
        framework="megatron-deepspeed",
    ),
    "deepspeed": Target(write=deepspeed.write_deepspeed, framework="deepspeed"),
    "torchtitan": Target(write=torchtitan.write_torchtitan, framework="torchtitan"),
    "accelerate": Target(write=huggingface.write_accelerate),
    "trainer": Target(write=huggingface.write_trainer),
    "nemo": Target(write=python_recipes.write_nemo, framework="megatron-bridge"),
    "colossalai": Target(
        write=python_recipes.write_colossalai, framework="colossal-ai"
    ),
    "torchrun": Target(write=write_torchrun),
}
WRAPPERS: Final[Mapping[str, Callable[[Run, Written], Written]]] = {
    "slurm": write_slurm,
    "kubernetes": write_kubernetes,
}
# Whose files say nothing of attention's kernel: the training script chooses it.
SILENT: Final = ("deepspeed", "torchtitan", "accelerate", "trainer")
ALONE: Final = "torchrun"  # what a wrapper starts where it is given nothing


def exports(run: Run, targets: Iterable[str]) -> dict[str, dict[str, str]]:
    """The files of each target by name; raises Unsupported with what a target cannot
    express, UnknownName for one that is not known."""
    return {name: dict(_written(run, name).files) for name in dict.fromkeys(targets)}


def _written(run: Run, name: str) -> Written:
    wrapper, inner = _parts(name)
    target = TARGETS[inner]
    if inner != ALONE and run.options.compress_gradients not in (None, AS_IT_IS):
        raise Unsupported(
            f"--export {name}: its files do not say that gradients are sent as "
            f"{run.options.compress_gradients}; leave --compress-gradients out, or "
            f"export {ALONE}"
        )
    if target.framework is not None:
        lacks = capabilities(target.framework).lacks(run.layout, run.job)
        if lacks:
            raise Unsupported(f"--export {name}: {'; '.join(lacks)}")
    if inner in SILENT and run.choice.flash_attention != run.fuses:
        other = "without" if run.fuses else "with"
        raise Unsupported(
            f"--export {name}: attention {other} a fused kernel is the training "
            "script's to choose, not these files'; leave --flash-attention and "
            "--no-flash-attention out"
        )
    found = target.write(run)
    return found if wrapper is None else WRAPPERS[wrapper](run, found)


def _parts(name: str) -> tuple[str | None, str]:
    """The wrapper and the target that *name* means, such as `slurm:megatron`."""
    first, colon, inner = name.partition(":")
    if first in WRAPPERS:
        inner = inner or ALONE
        if inner not in TARGETS:
            raise UnknownName("target of --export", inner, TARGETS)
        return first, inner
    if colon or first not in TARGETS:
        raise UnknownName("target of --export", name, [*TARGETS, *WRAPPERS])
    return None, first


def require_targets(targets: Iterable[str], folder: Path | None = None) -> None:
    """Raise before anything is priced for names that are not known, and for a *folder*
    that cannot be written; InvalidQuestion where it is of no use."""
    names = list(targets)
    for name in names:
        _parts(name)
    if folder is not None and not names:
        raise InvalidQuestion(
            "--export-to is where --export writes; add --export, such as --export "
            "megatron"
        )
    if names:
        require_folder(folder or Path(), "--export-to")


def framework_for(targets: Iterable[str]) -> str | None:
    """The framework whose files the first of *targets* are, as `--framework` names it;
    None where that is ours, or one of several."""
    for name in targets:
        found = TARGETS[_parts(name)[1]].framework
        if found is not None:
            return found
    return None


def files_of(found: Mapping[str, Mapping[str, str]], folder: Path) -> dict[Path, str]:
    """Where each file goes: in *folder*, or where several targets write, in a folder of
    its own name there."""
    if len(found) == 1:
        return {
            folder / file: text
            for files in found.values()
            for file, text in files.items()
        }
    return {
        folder / name.replace(":", "-") / file: text
        for name, files in found.items()
        for file, text in files.items()
    }


def write_files(files: Mapping[Path, str], read: Iterable[Any] = ()) -> None:
    """Write every file; raises Contradiction before the first for one that is *read*,
    InvalidFile for one that cannot be written."""
    taken = {Path(one).resolve() for one in read if one is not None}
    for path in files:
        if path.resolve() in taken:
            raise Contradiction(
                f"--export would write over {path}, which is read for this answer; "
                "give --export-to another folder"
            )
        require_folder(path.parent, "--export-to")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
