"""A folder of checkpoints: `step-000100`, each whole, described by its `meta.json`.

A checkpoint is written as `step-000100.partial` and renamed when all of it is there, so
a run that dies while writing leaves nothing that looks like one. What is let go is
renamed before it is deleted.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.errors import Contradiction, InvalidFile
from profiles.files import require_folder, shown
from runtime.checkpoint.description import DESCRIPTION
from runtime.checkpoint.manifest import (
    META,
    Parent,
    read_meta,
    require_same_job,
    require_there,
    write_manifest,
)

_NAME = re.compile(r"step-(\d{6,})")
_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The *newest* checkpoints stay (by default two: one in case its disk loses the
    other), and for good those whose step is a multiple of *every*."""

    newest: int = 2
    every: int | None = None

    def outlived(self, steps: Iterable[int]) -> list[int]:
        """Those of *steps* that nothing keeps.

        >>> Retention(newest=1, every=20).outlived([10, 20, 30, 40, 50])
        [10, 30]
        """
        return [
            step
            for step in sorted(steps)[: -self.newest]
            if not self.every or step % self.every
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint to go on from, and what is said of newer ones that are damaged."""

    path: Path
    meta: dict[str, Any]
    passed_over: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()  # their names

    @property
    def step(self) -> int:
        return step_of(self.path)


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint in *folder*; None if there is none."""
    return max(whole(folder), key=step_of, default=None)


def step_of(path: Path) -> int:
    """How many steps a checkpoint has behind it.

    >>> step_of(Path("step-000100"))
    100
    """
    named = _NAME.fullmatch(path.name)
    assert named is not None
    return int(named[1])


def newest_sound(
    folder: Path,
    names: Collection[str],
    meta: Mapping[str, Any],
    require_sound: Callable[[Path], dict[str, Any]],
) -> Found:
    """The newest of the checkpoints called *names* that a run which *meta* describes
    can go on from: whose manifest *require_sound* gives, raising InvalidFile if it is
    damaged.

    Raises InvalidFile if there is none, Contradiction if one is of another model.
    """
    faults: dict[str, str] = {}
    for path in sorted((folder / name for name in names), key=step_of, reverse=True):
        try:
            stored = require_sound(path)
        except InvalidFile as error:
            faults[path.name] = str(error)
            continue
        require_same_job(path, stored, meta)
        used = f"{path.name} is used instead"
        return Found(
            path=path,
            meta=stored,
            passed_over=tuple(f"{fault}; {used}" for fault in faults.values()),
            damaged=tuple(faults),
        )
    if faults:
        raise InvalidFile(
            f"{next(iter(faults.values()))}; restore it from a copy, or begin again in "
            "another folder"
        )
    raise InvalidFile(
        f"{shown(folder)} holds no checkpoint to resume from; leave --resume out "
        "to start at step 0, or name the folder of the run"
    )


def resumable(folder: Path, meta: Mapping[str, Any]) -> Found:
    """What a run which *meta* describes would resume from, as far as can be told
    without reading tensors.

    Raises InvalidFile if *folder* holds nothing that is whole, or takes no other;
    Contradiction if it is of another model.
    """
    names = [one.name for one in whole(folder)]
    found = newest_sound(folder, names, meta, looked_at)
    require_folder(folder, "--checkpoint-dir")
    return found


def looked_at(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose files are there, and as long as they were;
    raises InvalidFile."""
    meta = read_meta(path)
    require_there(path, meta, DESCRIPTION)
    return meta


def require_fresh(folder: Path) -> None:
    """Raise if *folder* cannot be made or written, or another run's state is there.

    Its later steps would outlive the earlier ones of a run that begins again.
    """
    found = latest(folder)
    if found is not None:
        raise Contradiction(
            f"{shown(folder)} holds {found.name} of another run; continue it with "
            "--resume, or name another folder"
        )
    require_folder(folder, "--checkpoint-dir")


def begin(folder: Path, step: int) -> Path:
    """The empty folder that a checkpoint is written to."""
    path = folder / f"{_name(step)}{_PARTIAL}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def finish(
    partial: Path,
    meta: Mapping[str, Any],
    keep: Retention,
    damaged: Collection[str] = (),
) -> Parent:
    """Name a checkpoint whose tensors are written, and let old ones go; gives what its
    child names. Those that are *damaged* neither go nor count."""
    path = partial.with_name(partial.name.removesuffix(_PARTIAL))
    named = write_manifest(partial, {**meta, "step": step_of(path)})
    _settle(partial)
    if path.exists():  # of an earlier try from an older step
        _let_go(path)
    partial.rename(path)
    _settle(path.parent)
    older = {
        step_of(one): one
        for one in whole(path.parent)
        if step_of(one) <= step_of(path) and one.name not in damaged
    }
    for step in keep.outlived(older):
        _let_go(older[step])
    forget_partial(path.parent)
    return named


def forget_partial(folder: Path) -> None:
    """Let go of what a run that has ended was still writing or deleting."""
    for one in folder.glob(f"step-*{_PARTIAL}"):
        shutil.rmtree(one, ignore_errors=True)


def whole(folder: Path) -> list[Path]:
    """The checkpoints in *folder* that were finished, in no order."""
    try:
        inside = list(folder.iterdir())
    except OSError:
        return []
    return [
        one for one in inside if _NAME.fullmatch(one.name) and (one / META).is_file()
    ]


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _let_go(path: Path) -> None:
    """Delete a checkpoint; half of one never looks like a whole."""
    aside = path.with_name(f"{path.name}.old{_PARTIAL}")
    shutil.rmtree(aside, ignore_errors=True)
    with suppress(OSError):
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def _settle(folder: Path) -> None:
    """Have the names in *folder* on disk, where its file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
