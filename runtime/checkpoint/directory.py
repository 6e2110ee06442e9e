"""A folder of checkpoints: `step-000100`, each whole, described by its `meta.json`.

A checkpoint is written as `step-000100.partial` and renamed when all of it is there, so
a run that dies while writing leaves nothing that looks like one.

A stranger may have made it, and nothing in it can run: `.metadata`, the pickle in which
PyTorch's distributed checkpoints describe their tensors, is read by an unpickler that
knows the dozen classes such a description is made of and refuses all others; tensors
are read with `weights_only`.
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, Final

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.serialization import _get_layout

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
            f"{shown(folder)} holds no checkpoint to resume from; leave --resume out "
            "to start at step 0, or name the folder of the run"
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
            f"{shown(folder)} holds {found.name} of another run; continue it with "
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
    return "restore it from a copy, or begin again in another folder"


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
        raise InvalidFile(
            f"{what} is not a checkpoint of meshwright: its {META} says no {FORMAT}"
        )
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


_CLASSES = (
    metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata.Metadata,
    metadata.MetadataIndex,
    metadata.StorageMeta,
    metadata.TensorProperties,
    metadata.TensorStorageMetadata,
    metadata._MEM_FORMAT_ENCODING,
    filesystem._StorageInfo,
    torch.Size,
    PosixPath,
    PurePosixPath,
    _get_layout,
)
_KNOWN = {(one.__module__, one.__qualname__): one for one in _CLASSES}


class Reader(FileSystemReader):
    """torch's reader, with a description that was read safely."""

    def __init__(self, path: Path, description: Metadata) -> None:
        super().__init__(path)
        self._description = description

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What `described` read."""
        return self._description


def described(path: Path) -> Metadata:
    """The tensors in the checkpoint at *path*, and where each of their pieces is.

    Raises InvalidFile if that is damaged, or made of anything else.
    """
    name = f"checkpoint {shown(path)}"
    try:
        with (path / DESCRIPTION).open("rb") as file:
            found: Metadata = _Unpickler(file).load()
    except OSError as error:
        raise InvalidFile(f"{name} cannot be read: {error.strerror}") from error
    except InvalidFile as error:
        raise InvalidFile(f"{name}: {error}") from error
    except Exception as error:  # a damaged pickle raises whatever it likes
        raise InvalidFile(
            f"{name} is damaged: its {DESCRIPTION} is cut or changed"
        ) from error
    if not _describes_tensors(found):
        raise InvalidFile(f"{name} is damaged: its {DESCRIPTION} describes no tensors")
    for file_name in files_of(found):
        if Path(file_name).name != file_name or not (path / file_name).is_file():
            raise InvalidFile(f"{name} is damaged: {shown(file_name)} is not in it")
    return found


def _describes_tensors(found: Any) -> bool:
    """Whether what a pickle held is a description, as far as it is used here."""
    inside = vars(found) if type(found) is Metadata else {}
    places = inside.get("storage_data")
    return (
        isinstance(inside.get("state_dict_metadata"), dict)
        and isinstance(places, dict)
        and all(type(place) is filesystem._StorageInfo for place in places.values())
        and all(isinstance(place.relative_path, str) for place in places.values())
    )


def files_of(description: Metadata) -> list[str]:
    """The files that hold the tensors."""
    return sorted({place.relative_path for place in description.storage_data.values()})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        found = getattr(torch, name, None) if module == "torch" else None
        if isinstance(found, torch.dtype):
            return found
        raise InvalidFile(
            f"its {DESCRIPTION} names {shown(f'{module}.{name}')}, which describes no "
            "tensor; it was not read"
        )
