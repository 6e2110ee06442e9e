"""What ranks that lost a peer write at once, and the checkpoint that is made of it.

    step lost     each rank that lives writes its own pieces, alone, to
                  `emergency-000123/rank-4` in the folder of checkpoints
    next start    where the pieces of one step are the whole state, they become that
                  step's checkpoint; else they are let go

(Swift's replica recovery: Zhong et al., PPoPP 2023, section 4.1.) The group of ranks is
broken by then, so nobody asks another: each says which tensors the whole state has.
"""

from __future__ import annotations

import pickle
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Final

from torch import nn
from torch.distributed.checkpoint.default_planner import (
    DefaultSavePlanner,
    create_default_global_save_plan,
)
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_saver import save as write_tensors

from profiles.errors import InvalidFile, MeshwrightError
from runtime.checkpoint.agreement import everywhere
from runtime.checkpoint.checkpoint import Snapshot, quiet
from runtime.checkpoint.description import DESCRIPTION, described, files_of
from runtime.checkpoint.directory import (
    Retention,
    begin,
    finish,
    latest,
    looked_at,
    step_of,
)
from runtime.checkpoint.manifest import (
    Parent,
    as_parent,
    digests,
    read_meta,
    require_same_job,
    require_undamaged,
    sizes,
    write_manifest,
)
from runtime.checkpoint.state import MODEL, OPTIMIZER, buffers, held

_FOLDER: Final = "emergency-"


def inventory(parts: Sequence[nn.Module]) -> dict[str, list[str]]:
    """The names of all parameters and buffers of the whole model; every rank calls this
    at once, while all are there."""

    def own() -> tuple[list[str], list[str]]:
        named = [one.name for one in held(parts, None)]
        return named, [name for name, _ in buffers(parts)]

    everyone = everywhere(own)
    parameters = {name for named, _ in everyone for name in named}
    others = {name for _, named in everyone for name in named}
    return {"parameters": sorted(parameters), "buffers": sorted(others)}


class _Alone(DefaultSavePlanner):
    """Plans of one rank, whose pieces need not be whole tensors."""

    def create_global_plan(
        self, all_plans: list[SavePlan]
    ) -> tuple[list[SavePlan], Metadata]:
        plans, self.metadata = create_default_global_save_plan(all_plans)
        self.global_plan = plans
        return plans, self.metadata


def write_alone(
    folder: Path, rank: int, one: Snapshot, whole: Mapping[str, Sequence[str]]
) -> None:
    """Write what this rank holds, of a model with the *whole* inventory."""
    place = folder / f"{_FOLDER}{one.step:06d}" / f"rank-{rank}"
    partial = place.with_name(f"{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with quiet(alone=True):
        write_tensors(
            one.tensors,
            storage_writer=FileSystemWriter(partial),
            planner=_Alone(),
            no_dist=True,
        )
    files = sorted(file.name for file in partial.iterdir())
    said = {
        "step": one.step,
        "tied": one.tied,
        "files": digests(partial, files),
        "sizes": sizes(partial, files),
        "whole": {kind: list(names) for kind, names in whole.items()},
    }
    write_manifest(partial, {**one.meta, **said})
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pieces:
    """What one rank wrote."""

    rank: int
    path: Path
    meta: dict[str, Any]
    description: Metadata


def salvaged(folder: Path, meta: Mapping[str, Any], keep: Retention) -> tuple[str, ...]:
    """Make the newest step that ranks saved in an emergency a checkpoint, if all of it
    is there; then let what they wrote go. Gives what is to be said of it.

    One process calls this, before training begins.
    """
    places = {int(one.name[len(_FOLDER) :]): one for one in _places(folder)}
    newest = latest(folder)
    done = -1 if newest is None else step_of(newest)
    said: list[str] = []
    for step in sorted(places, reverse=True):
        pieces = list(_pieces(places[step], meta))
        lacks = _lacking(pieces)
        if step <= done or lacks:
            if lacks and step > done:
                said.append(f"what ranks wrote of step {step} lacks {lacks}")
            continue
        _assemble(folder, step, pieces, keep)
        ranks = ", ".join(str(one.rank) for one in pieces)
        said = [f"step {step} is recovered from what ranks {ranks} held"]
        break
    for place in places.values():
        shutil.rmtree(place, ignore_errors=True)
    return tuple(said)


def forget_emergency(folder: Path) -> None:
    """Let go of what ranks of another run wrote."""
    for place in _places(folder):
        shutil.rmtree(place, ignore_errors=True)


def _places(folder: Path) -> Iterator[Path]:
    for one in folder.glob(f"{_FOLDER}*"):
        if one.name[len(_FOLDER) :].isdecimal() and one.is_dir():
            yield one


def _pieces(place: Path, meta: Mapping[str, Any]) -> Iterator[_Pieces]:
    """Those in *place* that are as they were written, by rank."""
    ranks = {one.name.removeprefix("rank-"): one for one in place.glob("rank-*")}
    for name in sorted((one for one in ranks if one.isdecimal()), key=int):
        path = ranks[name]
        try:
            said = looked_at(path)
            require_same_job(path, said, meta)
            require_undamaged(path, said, said.get("files") or {})
            found = described(path)
        except MeshwrightError:
            continue
        yield _Pieces(rank=int(name), path=path, meta=said, description=found)


Places = dict[tuple[int, ...], tuple[ChunkStorageMetadata, _Pieces]]


def _chunks(pieces: Sequence[_Pieces]) -> dict[str, Places]:
    """By tensor and place in it, the chunk there and who wrote it: the lowest rank."""
    found: dict[str, Places] = defaultdict(dict)
    for one in pieces:
        for name, entry in one.description.state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                for chunk in entry.chunks:
                    found[name].setdefault(tuple(chunk.offsets), (chunk, one))
    return found


def _lacking(pieces: Sequence[_Pieces]) -> str | None:
    """A tensor of the whole state that *pieces* do not make; None if they make all."""
    if not pieces:
        return "all of them"
    chunks = _chunks(pieces)
    numbers = {
        name: prod(entry.size)
        for one in pieces
        for name, entry in one.description.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    whole = pieces[0].meta.get("whole") or {}
    parameters = whole.get("parameters") or ["parameters"]  # which nothing is called
    kinds = {name.rpartition(".")[2] for name in chunks if name.startswith(OPTIMIZER)}
    expected = [f"{MODEL}{name}" for name in (*parameters, *whole.get("buffers", ()))]
    expected += [f"{OPTIMIZER}{name}.{kind}" for name in parameters for kind in kinds]
    for name in sorted(expected):
        here = sum(prod(chunk.sizes) for chunk, _ in chunks.get(name, {}).values())
        if name not in numbers or here != numbers[name]:
            return name
    return None


def _assemble(
    folder: Path, step: int, pieces: Sequence[_Pieces], keep: Retention
) -> None:
    """A checkpoint of step *step* from *pieces*, whose files become its own."""
    partial = begin(folder, step)
    named: dict[tuple[int, str], str] = {}
    for one in pieces:
        for number, name in enumerate(files_of(one.description)):
            named[one.rank, name] = f"__{one.rank}_{number}.distcp"
    entries: dict[str, Any] = {}
    places: dict[MetadataIndex, Any] = {}
    for name, found in _chunks(pieces).items():
        first = next(iter(found.values()))[1].description.state_dict_metadata[name]
        assert isinstance(first, TensorStorageMetadata)
        ordered = [found[offsets] for offsets in sorted(found)]
        entries[name] = replace(first, chunks=[chunk for chunk, _ in ordered])
        for number, (chunk, one) in enumerate(ordered):
            index = MetadataIndex(name, chunk.offsets, number)
            place = one.description.storage_data[index]
            file = named[one.rank, place.relative_path]
            places[index] = replace(place, relative_path=file)
    used = {place.relative_path for place in places.values()}
    for one in pieces:
        for name in files_of(one.description):
            file = named[one.rank, name]
            if file in used:
                (one.path / name).rename(partial / file)
    whole = replace(
        pieces[0].description, state_dict_metadata=entries, storage_data=places
    )
    (partial / DESCRIPTION).write_bytes(pickle.dumps(whole))
    files = sorted(file.name for file in partial.iterdir())
    said = {
        "tied": {k: v for one in pieces for k, v in (one.meta["tied"] or {}).items()},
        "files": digests(partial, files),
        "sizes": sizes(partial, files),
        "parent": _parent(folder),
        "recovered_from": [one.rank for one in pieces],
    }
    kept = {k: v for k, v in pieces[0].meta.items() if k not in ("whole", "content")}
    finish(partial, {**kept, **said}, keep)


def _parent(folder: Path) -> Parent | None:
    newest = latest(folder)
    if newest is None:
        return None
    try:
        return as_parent(newest, read_meta(newest))
    except InvalidFile:
        return None
