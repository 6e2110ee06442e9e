"""A folder of checkpoints: `step-000100`, each whole, described by its `meta.json`.

A checkpoint is written as `step-000100.partial` and renamed when all of it is there, so
a run that dies while writing leaves nothing that looks like one.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from profiles.errors import Contradiction, InvalidFile
from profiles.files import read_json, require_folder, shown, write_text
from profiles.units import MiB

FORMAT, VERSION = "meshwright/checkpoint", 1
KEPT = 2  # the newest, and one in case its disk loses it
META = "meta.json"
DESCRIPTION = ".metadata"  # PyTorch's
_NAME = re.compile(r"step-(\d{6,})")
_PARTIAL = ".partial"
_PIECE_BYTES = 4 * MiB
# What a run takes from `meta.json`; null or missing where there was none.
_KINDS: Final[dict[str, Any]] = {
    "files": dict,
    "sizes": dict,
    "tied": dict,
    "lr": int | float,
    "loss_scale": list,
    "seed": int,
    "data": str,
}


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint in *folder*; None if there is none."""
    return max(_whole(folder), key=step_of, default=None)


def step_of(path: Path) -> int:
    """How many steps a checkpoint has behind it.

    >>> step_of(Path("step-000100"))
    100
    """
    named = _NAME.fullmatch(path.name)
    assert named is not None
    return int(named[1])


def require_resumable(folder: Path, meta: Mapping[str, Any]) -> int:
    """The step that a run which *meta* describes would resume from.

    Raises InvalidFile if *folder* holds no checkpoint or takes no other, or if files of
    the newest one are gone or cut; Contradiction if it is of another model.
    """
    path = latest(folder)
    if path is None:
        raise InvalidFile(
            f"{shown(folder)} holds no checkpoint to resume from; leave out --resume "
            "to begin at step 0, or name the folder of the run"
        )
    stored = read_meta(path)
    require_same_job(path, stored, meta)
    _require_there(path, stored)
    require_folder(folder, "--checkpoint-dir")
    return step_of(path)


def require_fresh(folder: Path) -> None:
    """Raise if *folder* cannot be made or written, or another run's state is there.

    Its later steps would outlive the earlier ones of a run that begins again.
    """
    found = latest(folder)
    if found is not None:
        raise Contradiction(
            f"{shown(folder)} holds {found.name} of a run; go on from it with "
            "--resume, or name another folder"
        )
    require_folder(folder, "--checkpoint-dir")


def begin(folder: Path, step: int) -> Path:
    """The empty folder that a checkpoint is written to."""
    path = folder / f"step-{step:06d}{_PARTIAL}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def finish(partial: Path, meta: Mapping[str, Any]) -> None:
    """Name a checkpoint whose tensors are written, and let old ones go."""
    path = partial.with_name(partial.name.removesuffix(_PARTIAL))
    document = {"format": FORMAT, "version": VERSION, "step": step_of(path), **meta}
    write_text(partial / META, json.dumps(document, indent=1))
    shutil.rmtree(path, ignore_errors=True)  # of an earlier try from an older step
    partial.rename(path)
    until_now = [one for one in _whole(path.parent) if step_of(one) <= step_of(path)]
    for one in sorted(until_now, key=step_of)[:-KEPT]:
        shutil.rmtree(one, ignore_errors=True)
    forget_partial(path.parent)


def forget_partial(folder: Path) -> None:
    """Let go of what a run that has ended was still writing."""
    for one in folder.glob(f"step-*{_PARTIAL}"):
        shutil.rmtree(one, ignore_errors=True)


def checksums(path: Path, files: Iterable[str]) -> dict[str, str]:
    """CRC-32 of *files* in a checkpoint, by name; PyTorch's reader looks at none."""
    sums = {}
    for name in files:
        sum_so_far = 0
        with (path / name).open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                sum_so_far = zlib.crc32(piece, sum_so_far)
        sums[name] = f"{sum_so_far:08x}"
    return sums


def sizes(path: Path, files: Iterable[str]) -> dict[str, int]:
    """Bytes of *files* in a checkpoint, by name."""
    return {name: (path / name).stat().st_size for name in files}


def remedy(path: Path) -> str:
    """What to do about a damaged checkpoint."""
    older = [one for one in _whole(path.parent) if step_of(one) < step_of(path)]
    if older:
        return f"delete it to go on from {max(older, key=step_of).name}"
    return "bring it back from a copy, or begin again in another folder"


def _require_there(path: Path, stored: Mapping[str, Any]) -> None:
    """What can be told without reading any file."""
    written = stored.get("files") or {}
    size_of = stored.get("sizes") or {}
    for name in sorted({DESCRIPTION, *written}):
        file = path / name
        gone = not file.is_file()
        if gone or file.stat().st_size != size_of.get(name, file.stat().st_size):
            why = "is not in it" if gone else "is not as it was written"
            raise InvalidFile(
                f"checkpoint {shown(path)} is damaged: {name} {why}; {remedy(path)}"
            )


def require_undamaged(
    path: Path, meta: Mapping[str, Any], files: Iterable[str]
) -> None:
    """Raise InvalidFile for *files* that are not as they were written."""
    written = meta.get("files") or {}
    for name, now in checksums(path, files).items():
        if written.get(name) != now:
            raise InvalidFile(
                f"checkpoint {shown(path)} is damaged: {name} is not as it was written"
            )


def read_meta(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself; raises InvalidFile."""
    what = f"checkpoint {shown(path)}"
    meta = read_json(path / META, what="the description of a checkpoint,")
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise InvalidFile(f"{what} is not one of ours: its {META} says no {FORMAT}")
    if meta.get("version") != VERSION:
        raise InvalidFile(
            f"{what} has version {meta.get('version')!r}; this program reads {VERSION}"
        )
    for key, kind in _KINDS.items():
        if not isinstance(meta.get(key), kind | None):
            raise InvalidFile(
                f"{what} is damaged: {key} in its {META} is {shown(meta[key])}"
            )
    return meta


def require_same_job(
    path: Path, stored: Mapping[str, Any], meta: Mapping[str, Any]
) -> None:
    """Raise Contradiction, naming the field, for a checkpoint of another job."""
    for field, then, now in _differences("job", stored.get("job"), meta.get("job")):
        raise Contradiction(
            f"checkpoint {shown(path)} is of another model or job: {field} was "
            f"{shown(json.dumps(then))}, here it is {shown(json.dumps(now))}"
        )


def _differences(place: str, then: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """(field, value then, value now) of all that differs between JSON values."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted(then.keys() | now.keys()):
            yield from _differences(f"{place}.{key}", then.get(key), now.get(key))
    elif then != now:
        yield place, then, now


def _whole(folder: Path) -> list[Path]:
    try:
        inside = list(folder.iterdir())
    except OSError:
        return []
    return [
        one for one in inside if _NAME.fullmatch(one.name) and (one / META).is_file()
    ]
