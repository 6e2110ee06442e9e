"""A checkpoint's manifest, `meta.json`: what it is of, and the hashes of all of it.

    files     SHA-256 of each file in the checkpoint
    layout    SHA-256 of the layout file's document that it was trained with
    parent    step and `content` of the checkpoint that the run had before it
    content   SHA-256 of the manifest itself without this entry

So one changed byte is found, in a file or in the manifest, and a checkpoint names all
those it came from. Checkpoints of version 1 have CRC-32 of their files and no chain.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from profiles.errors import Contradiction, InvalidFile
from profiles.files import read_json, shown, why, write_text
from profiles.units import MiB

FORMAT, VERSION = "meshwright/checkpoint", 2
OF_SUMS: Final = 1  # the version whose files have CRC-32
META: Final = "meta.json"
_PIECE_BYTES = 4 * MiB
# What a run takes from a manifest; null or missing where there was none.
_KINDS: Final[dict[str, Any]] = {
    "files": dict[str, str],
    "sizes": dict[str, int],
    "tied": dict[str, str],
    "lr": float,
    "loss_scale": tuple[float, int],
    "skipped": list[int],
    "seed": int,
    "data": str,
    "layout": str,
    "optimizer": str,
    "parent": dict[str, int | str],
    "whole": dict[str, list[str]],
    "content": str,
}

Parent = dict[str, Any]  # {"step": 100, "content": "9f86…"}


def write_manifest(path: Path, document: Mapping[str, Any]) -> Parent:
    """Put the manifest of the checkpoint at *path* in place; what its child names."""
    whole = {"format": FORMAT, "version": VERSION, **document}
    whole.pop("content", None)
    content = _digest(_text(whole).encode())
    write_text(path / META, _text({**whole, "content": content}))
    return {"step": whole["step"], "content": content}


def layout_hash(document: Mapping[str, Any]) -> str:
    """SHA-256 of a layout file's *document*, whatever order its keys are in and
    wherever it lies; hashes of the samples it was priced with are part of it."""
    whole = ("job", "cluster", "gpus", "profiles", "layout")
    said = {name: document.get(name) for name in whole}
    return _digest(json.dumps(said, sort_keys=True).encode())


def as_parent(path: Path, meta: Mapping[str, Any]) -> Parent:
    """How a checkpoint's child names it."""
    content = meta.get("content")
    if content is None:  # of version 1
        content = _digest((path / META).read_bytes())
    return {"step": meta.get("step"), "content": content}


def read_meta(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself; raises InvalidFile."""
    what = f"checkpoint {shown(path)}"
    meta = read_json(path / META, what="the description of a checkpoint,")
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise InvalidFile(
            f"{what} is not a checkpoint of meshwright: its {META} says no {FORMAT}"
        )
    version = meta.get("version")
    if version not in (OF_SUMS, VERSION):
        raise InvalidFile(
            f"{what} has version {shown(version)}; this program reads {OF_SUMS} and "
            f"{VERSION}"
        )
    for key, kind in _KINDS.items():
        if not _is(meta.get(key), kind | None):
            raise InvalidFile(
                f"{what} is damaged: {key} in its {META} is {shown(meta[key])}"
            )
    if version == VERSION and not _as_written(path, meta):
        raise InvalidFile(f"{what} is damaged: {META} is not as it was written")
    return meta


def _is(value: Any, kind: Any) -> bool:
    import msgspec

    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True


def _as_written(path: Path, meta: dict[str, Any]) -> bool:
    """Whether a manifest has the hash that it says, to the byte."""
    without = {key: value for key, value in meta.items() if key != "content"}
    same = _digest(_text(without).encode()) == meta.get("content")
    return same and _text(meta).encode() == (path / META).read_bytes()


def digests(path: Path, files: Iterable[str], version: int = VERSION) -> dict[str, str]:
    """The hash of each of *files* in a checkpoint, by name, as *version* has it.

    Raises InvalidFile for one that cannot be read.
    """
    found = {}
    for name in files:
        try:
            with (path / name).open("rb") as file:
                if version == OF_SUMS:
                    found[name] = _sum(file)
                else:
                    found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise InvalidFile(
                f"checkpoint {shown(path)} is damaged: {shown(name)} cannot be read: "
                f"{why(error)}"
            ) from error
    return found


def sizes(path: Path, files: Iterable[str]) -> dict[str, int]:
    """Bytes of *files* in a checkpoint, by name."""
    return {name: (path / name).stat().st_size for name in files}


def require_undamaged(
    path: Path, meta: Mapping[str, Any], files: Iterable[str]
) -> None:
    """Raise InvalidFile for *files* that are not as they were written."""
    known = meta.get("files") or {}
    for name, now in digests(path, files, meta["version"]).items():
        if known.get(name) != now:
            raise InvalidFile(
                f"checkpoint {shown(path)} is damaged: {name} is not as it was written"
            )


def require_there(path: Path, meta: Mapping[str, Any], always: str) -> None:
    """Raise InvalidFile for files that are gone or cut, *always* among them: what can
    be told without reading any."""
    size_of = meta.get("sizes") or {}
    for name in sorted({always, *(meta.get("files") or {})}):
        if Path(name).name != name:
            raise InvalidFile(
                f"checkpoint {shown(path)} is damaged: {META} names {shown(name)}, "
                "which is no file in it"
            )
        file = path / name
        gone = not file.is_file()
        if gone or file.stat().st_size != size_of.get(name, file.stat().st_size):
            fault = "is not in it" if gone else "is not as it was written"
            raise InvalidFile(
                f"checkpoint {shown(path)} is damaged: {shown(name)} {fault}"
            )


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


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sum(file: Any) -> str:
    found = 0
    while piece := file.read(_PIECE_BYTES):
        found = zlib.crc32(piece, found)
    return f"{found:08x}"
