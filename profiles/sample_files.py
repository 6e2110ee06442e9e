"""`Samples` as a file: format "meshwright/samples", version 1, with a content hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from profiles.documents import decode, read_json, shown, write_text
from profiles.errors import InvalidFile, InvalidSpec
from profiles.samples import CollectiveKey, OperatorKey, Sample, Samples
from profiles.units import MiB

# msgspec takes as long to load as this whole package, so functions load it inside.

FORMAT = "meshwright/samples"
VERSION = 1
LARGEST_BYTES = 256 * MiB
_WHAT = "the file of samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    key: str
    seconds: float
    spread: float
    repeats: int
    provenance: str
    saved_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    machine: Mapping[str, str]
    operators: tuple[_Row, ...]
    collectives: tuple[_Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    format: str
    version: int
    content_hash: str
    machine: Mapping[str, str]
    operators: tuple[_Row, ...]
    collectives: tuple[_Row, ...]


def content_hash(samples: Samples) -> str:
    """SHA-256 of all that the table holds; equal tables have equal hashes."""
    import msgspec

    encoded = msgspec.json.encode(_body(samples))
    return f"sha256:{hashlib.sha256(encoded).hexdigest()}"


def write_samples(samples: Samples, path: Path | str) -> str:
    """Write *samples* whole or not at all; returns the content hash.

    Raises InvalidFile where the file cannot be written.
    """
    import msgspec

    digest = content_hash(samples)
    header = {"format": FORMAT, "version": VERSION, "content_hash": digest}
    document = {**header, **asdict(_body(samples))}
    text = msgspec.json.format(msgspec.json.encode(document), indent=1)
    write_text(path, text.decode() + "\n")
    return digest


def read_samples(path: Path | str) -> Samples:
    """Read what `write_samples` wrote.

    Raises InvalidFile, naming the version, member or key, for anything else.
    """
    file = _file(read_json(path, what=_WHAT, most_bytes=LARGEST_BYTES), shown(path))
    try:
        operators = {OperatorKey.parse(row.key): _sample(row) for row in file.operators}
        collectives = {
            CollectiveKey.parse(row.key): _sample(row) for row in file.collectives
        }
    except InvalidSpec as error:
        raise InvalidFile(f"{_WHAT} {shown(path)}: {error}") from error
    samples = Samples(
        operators=operators, collectives=collectives, machine=file.machine
    )
    if content_hash(samples) != file.content_hash:
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


def _body(samples: Samples) -> _Body:
    return _Body(
        machine=dict(sorted(samples.machine.items())),
        operators=_rows(samples.operators),
        collectives=_rows(samples.collectives),
    )


def _rows(table: Mapping[Any, Sample]) -> tuple[_Row, ...]:
    rows = [_Row(key=str(key), **asdict(sample)) for key, sample in table.items()]
    return tuple(sorted(rows, key=lambda row: row.key))


def _sample(row: _Row) -> Sample:
    fields = asdict(row)
    del fields["key"]
    return Sample(**fields)
