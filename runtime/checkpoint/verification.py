"""`verified`: every hash in a folder of checkpoints, and their chain of parents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from profiles.errors import InvalidFile
from profiles.files import shown
from runtime.checkpoint.description import DESCRIPTION
from runtime.checkpoint.directory import step_of, whole
from runtime.checkpoint.manifest import (
    META,
    Parent,
    as_parent,
    read_meta,
    require_there,
    require_undamaged,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """On one checkpoint: its *faults*, a line each. *chained* where its parent is in
    the folder too; None where it has none or that was let go."""

    name: str
    step: int
    files: int
    content: str | None
    parent: Parent | None
    chained: bool | None
    faults: tuple[str, ...]


def verified(folder: Path, layout: str | None = None) -> list[Verdict]:
    """On each checkpoint in *folder*, the oldest first; the newest is to be of the
    *layout* with this hash.

    Raises InvalidFile where there is none.
    """
    paths = sorted(whole(folder), key=step_of)
    if not paths:
        raise InvalidFile(
            f"{shown(folder)} holds no checkpoint to verify; name the folder of a run"
        )
    manifests: dict[Path, dict[str, Any]] = {}
    faults: dict[Path, list[str]] = {path: [] for path in paths}
    for path in paths:
        try:
            manifests[path] = read_meta(path)
        except InvalidFile as error:
            faults[path].append(str(error))
    named = {path: as_parent(path, meta) for path, meta in manifests.items()}
    for path, meta in manifests.items():
        faults[path] += _of_files(path, meta)
    trained = manifests.get(paths[-1], {}).get("layout")
    if layout is not None and trained != layout:
        faults[paths[-1]].append(
            f"checkpoint {shown(paths[-1])} was trained with another layout: its "
            f"{META} says {trained}, the layout file is {layout}"
        )
    return [
        _verdict(path, manifests.get(path, {}), faults[path], named) for path in paths
    ]


def verified_document(folder: Path, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """What `--verify --json` prints."""
    return {
        "folder": str(folder),
        "sound": not any(one.faults for one in verdicts),
        "checkpoints": [asdict(one) for one in verdicts],
    }


def verified_view(verdicts: Sequence[Verdict]) -> RenderableType:
    """A line for each checkpoint."""
    table = Table(box=None, pad_edge=False)
    for name in ("checkpoint", "files", "content", "after", ""):
        table.add_column(name, justify="right" if name == "files" else "left")
    for one in verdicts:
        after = "–" if one.parent is None else f"step {one.parent.get('step')}"
        gone = one.parent is not None and one.chained is None and not one.faults
        table.add_row(
            one.name,
            str(one.files),
            (one.content or "–")[:12],
            f"{after} (not in the folder)" if gone else after,
            "DAMAGED" if one.faults else "as written",
        )
    return table


def _of_files(path: Path, meta: Mapping[str, Any]) -> Iterable[str]:
    """Each file that is not as it was written."""
    for name in sorted({DESCRIPTION, *(meta.get("files") or {})}):
        one = {**meta, "files": {name: (meta.get("files") or {}).get(name)}}
        try:
            require_there(path, one, name)
            if name in (meta.get("files") or {}):  # as version 1 began, one was not
                require_undamaged(path, one, [name])
        except InvalidFile as error:
            yield str(error)


def _verdict(
    path: Path,
    meta: Mapping[str, Any],
    faults: list[str],
    named: Mapping[Path, Parent],
) -> Verdict:
    parent = meta.get("parent")
    chained = None
    if parent is not None and path in named:
        here = {one["step"]: one["content"] for one in named.values()}
        before = here.get(parent.get("step"))
        chained = None if before is None else before == parent.get("content")
        if chained is False:
            faults.append(
                f"checkpoint {shown(path)} comes from another step {parent['step']} "
                f"than the one that is there: its {META} says "
                f"{shown(parent.get('content'))}, that is {before}"
            )
    return Verdict(
        name=path.name,
        step=step_of(path),
        files=len(meta.get("files") or {}),
        content=meta.get("content"),
        parent=parent,
        chained=chained,
        faults=tuple(faults),
    )
