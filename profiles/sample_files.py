"""`Samples` as a file: format "meshwright/samples", version 1, with a content hash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import msgspec

from profiles.errors import InvalidFile, InvalidSpec
from profiles.samples import CollectiveKey, OperatorKey, Sample, Samples
from profiles.units import MiB

FORMAT = "meshwright/samples"
VERSION = 1
LARGEST_BYTES = 256 * MiB


class _Row(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    key: str
    seconds: float
    spread: float
    repeats: int
    provenance: str
    saved_bytes: float | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    machine: dict[str, str]
    operators: list[_Row]
    collectives: list[_Row]


class _File(_Body, forbid_unknown_fields=True):
    format: str
    version: int
    content_hash: str


def content_hash(samples: Samples) -> str:
    """SHA-256 of all that the table holds; equal tables have equal hashes."""
    return _hash(_body(samples))


def write_samples(samples: Samples, path: Path) -> str:
    """Write *samples* whole or not at all; returns the content hash."""
    body = _body(samples)
    digest = _hash(body)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "content_hash": digest,
        **msgspec.to_builtins(body),
    }
    text = msgspec.json.format(msgspec.json.encode(document), indent=1)
    with NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as beside:
        beside.write(text + b"\n")
    os.chmod(beside.name, 0o644)
    os.replace(beside.name, path)
    return digest


def read_samples(path: Path) -> Samples:
    """Read what `write_samples` wrote.

    Raises InvalidFile, naming the version, member or key, for anything else.
    """
    document = _decoded(_content(path), path, Any)
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise InvalidFile(
            f"{path} is not a file of samples: its format is not {FORMAT!r}; "
            "the command profile writes one"
        )
    if document.get("version") != VERSION:
        raise InvalidFile(
            f"{path} has version {document.get('version')!r} of {FORMAT}; this release "
            f"reads version {VERSION}"
        )
    try:
        file = msgspec.convert(document, _File)
        operators = {OperatorKey.parse(row.key): _sample(row) for row in file.operators}
        collectives = {
            CollectiveKey.parse(row.key): _sample(row) for row in file.collectives
        }
    except (msgspec.ValidationError, InvalidSpec) as error:
        raise InvalidFile(f"{path}: {error}") from error
    samples = Samples(
        operators=operators, collectives=collectives, machine=file.machine
    )
    if content_hash(samples) != file.content_hash:
        raise InvalidFile(
            f"{path} was changed after it was written: its content does not match its "
            "content_hash; measure again, or restore it"
        )
    return samples


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise InvalidFile(f"{path} is larger than {LARGEST_BYTES // MiB} MiB")
        return path.read_bytes()
    except OSError as error:
        raise InvalidFile(f"{path} cannot be read: {error.strerror}") from error


def _decoded(content: bytes, path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidFile(f"{path} is not whole JSON: {error}") from error


def _body(samples: Samples) -> _Body:
    return _Body(
        machine=dict(sorted(samples.machine.items())),
        operators=_rows(samples.operators),
        collectives=_rows(samples.collectives),
    )


def _rows(table: Mapping[Any, Sample]) -> list[_Row]:
    return sorted(
        (
            _Row(
                key=str(key),
                seconds=sample.seconds,
                spread=sample.spread,
                repeats=sample.repeats,
                provenance=sample.provenance,
                saved_bytes=sample.saved_bytes,
            )
            for key, sample in table.items()
        ),
        key=lambda row: row.key,
    )


def _sample(row: _Row) -> Sample:
    return Sample(
        seconds=row.seconds,
        spread=row.spread,
        repeats=row.repeats,
        provenance=row.provenance,
        saved_bytes=row.saved_bytes,
    )


def _hash(body: _Body) -> str:
    return "sha256:" + hashlib.sha256(msgspec.json.encode(body)).hexdigest()
