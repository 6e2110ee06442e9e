"""`Samples` as a file: format "meshwright/samples", version 1, with a content hash.

The cluster `local` stands beside the tables, in the form of a cluster file; a file
without one is as good as ever.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from profiles.errors import InvalidFile, InvalidSpec
from profiles.files import decode, read_json, shown, why, write_text
from profiles.hardware import Cluster, parse_cluster
from profiles.samples.table import CollectiveKey, OperatorKey, Sample, Samples
from profiles.units import MiB

# msgspec takes as long to load as this whole package, so functions load it inside.

FORMAT = "meshwright/samples"
VERSION = 1
LARGEST_BYTES = 256 * MiB
_WHAT = "the file of samples"
_HEADER = frozenset(("format", "version", "content_hash"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    key: str
    seconds: float
    spread: float
    repeats: int
    provenance: str
    saved_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    format: str
    version: int
    content_hash: str
    machine: Mapping[str, str]
    operators: tuple[_Row, ...]
    collectives: tuple[_Row, ...]
    cluster: dict[str, Any] | None = None
    runs: tuple[dict[str, Any], ...] = ()


def content_hash(samples: Samples) -> str:
    """SHA-256 of all that the table holds; equal tables have equal hashes."""
    return _digest(_members(samples))


def _digest(members: Mapping[str, Any]) -> str:
    import hashlib

    import msgspec

    return f"sha256:{hashlib.sha256(msgspec.json.encode(members)).hexdigest()}"


def write_samples(samples: Samples, path: Path | str) -> str:
    """Write *samples* whole or not at all; returns the content hash.

    Raises InvalidFile where the file cannot be written.
    """
    import msgspec

    digest = content_hash(samples)
    header = {"format": FORMAT, "version": VERSION, "content_hash": digest}
    document = {**header, **_members(samples)}
    text = msgspec.json.format(msgspec.json.encode(document), indent=1)
    write_text(path, text.decode() + "\n")
    return digest


def require_writable(path: Path | str) -> None:
    """Raise InvalidFile where `write_samples` could not write: measuring takes long."""
    from tempfile import TemporaryFile

    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            kind = "a folder" if target.is_dir() else "no regular file"
            raise InvalidFile(f"{shown(path)} is {kind}; name a file to write")
        with TemporaryFile(dir=target.parent):
            pass
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{shown(path)} cannot be written: {why(error)}") from error


def read_samples(path: Path | str) -> Samples:
    """Read what `write_samples` wrote.

    Raises InvalidFile, naming the version, member or key, for anything else.
    """
    document = read_json(path, what=_WHAT, most_bytes=LARGEST_BYTES)
    file = _file(document, shown(path))
    assert isinstance(document, dict), "checked by _file"
    try:
        operators = {OperatorKey.parse(row.key): _sample(row) for row in file.operators}
        collectives = {
            CollectiveKey.parse(row.key): _sample(row) for row in file.collectives
        }
        samples = Samples(
            operators=operators,
            collectives=collectives,
            machine=file.machine,
            cluster=_cluster(file, shown(path)),
            runs=file.runs,
        )
    except InvalidSpec as error:
        raise InvalidFile(f"{_WHAT} {shown(path)}: {error}") from error
    # As stored: an older release may not have known a member that has a default today.
    stored = {name: document[name] for name in document if name not in _HEADER}
    if file.content_hash not in (_digest(stored), content_hash(samples)):
        raise InvalidFile(
            f"{_WHAT} {shown(path)} was changed after it was written: its content does "
            "not match its content_hash; measure again, or restore it"
        )
    return samples


def _file(document: object, path: str) -> _File:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidFile(
            f"{path} is not a file of samples: its format is not {FORMAT!r}; "
            "the command profile writes one"
        )
    if document.get("version") != VERSION:
        raise InvalidFile(
            f"{path} has version {document.get('version')!r} of {FORMAT}; this release "
            f"reads version {VERSION}"
        )
    return decode(document, _File, what=f"{_WHAT} {path}")


def _cluster(file: _File, path: str) -> Cluster | None:
    if file.cluster is None:
        return None
    return parse_cluster(file.cluster, what=f"{_WHAT} {path}: its cluster")


def _members(samples: Samples) -> dict[str, Any]:
    """All that is stored and hashed; without a cluster there is no such member."""
    members: dict[str, Any] = {
        "machine": dict(sorted(samples.machine.items())),
        "operators": _rows(samples.operators),
        "collectives": _rows(samples.collectives),
    }
    if samples.cluster is not None:  # numbers as they will be read back: 0 is 0.0
        known = parse_cluster(asdict(samples.cluster), what="the cluster local")
        members["cluster"] = asdict(known)
    if samples.runs:
        members["runs"] = list(samples.runs)
    return members


def _rows(table: Mapping[Any, Sample]) -> list[dict[str, Any]]:
    rows = [{"key": str(key), **asdict(sample)} for key, sample in table.items()]
    return sorted(rows, key=lambda row: row["key"])


def _sample(row: _Row) -> Sample:
    fields = asdict(row)
    del fields["key"]
    return Sample(**fields)
