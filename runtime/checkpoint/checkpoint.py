"""Checkpoints: written by all ranks of one layout, read by all ranks of any other.

PyTorch's distributed checkpoint moves the tensors, each rank its own pieces. A run that
is resumed with the same layout goes on bit for bit; with another one it reads the same
numbers and differs by rounding only.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as read_tensors
from torch.distributed.checkpoint.state_dict_saver import save as write_tensors

from profiles.errors import Contradiction, InvalidFile
from profiles.files import shown
from profiles.units import format_bytes
from runtime.checkpoint.agreement import Group, everywhere, first_rank, rank_and_world
from runtime.checkpoint.description import DESCRIPTION, Reader, described
from runtime.checkpoint.directory import (
    Found,
    Retention,
    begin,
    finish,
    forget_partial,
    looked_at,
    newest_sound,
    whole,
)
from runtime.checkpoint.manifest import Parent, digests, require_undamaged, sizes
from runtime.checkpoint.state import Wanted, held, ties, written
from runtime.optim import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What this rank has of the state after *step* steps, and what is said of it."""

    step: int
    tensors: dict[str, Tensor]
    tied: dict[str, str]
    meta: dict[str, Any]

    @classmethod
    def of(
        cls,
        step: int,
        parts: Sequence[nn.Module],
        optimizer: Optimizer | None,
        meta: Mapping[str, Any],
    ) -> Snapshot:
        """As it is now; nothing is copied."""
        of_optimizer = {
            "optimizer": None if optimizer is None else type(optimizer.inner).__name__,
            "lr": None if optimizer is None else optimizer.learning_rate,
        }
        return cls(
            step=step,
            tensors=written(parts, optimizer),
            tied=ties(parts),
            meta={**meta, **of_optimizer},
        )


def save(
    folder: Path,
    *,
    step: int,
    parts: Sequence[nn.Module],
    optimizer: Optimizer | None,
    meta: Mapping[str, Any],
) -> None:
    """Write the state after *step* steps into *folder*; every rank calls this at once.

    *parts* are the modules that this rank holds, under the whole model's names. *meta*
    is kept with it (JSON values); its ``job`` must be the same when it is resumed.
    """
    store(folder, Snapshot.of(step, parts, optimizer, meta), Retention())


def store(
    folder: Path,
    one: Snapshot,
    keep: Retention,
    damaged: Collection[str] = (),
    group: Group = None,
) -> Parent:
    """Write *one* into *folder*, and let those go that *keep* does not keep; every rank
    of *group* calls this at once. Gives what the next one names as its parent.

    It has its name when all ranks' files are there and hashed. Raises InvalidFile, on
    every rank, where anything cannot be written; what was there before stays.
    """
    rank, _ = rank_and_world(group)
    try:
        partial = first_rank(lambda: begin(folder, one.step), group)
        _write(partial, one.tensors, group)
        hashed = everywhere(lambda: _extent(partial, rank, one), group)
        meta = {**one.meta, **{key: _joined(hashed, key) for key in hashed[0]}}
        return first_rank(lambda: finish(partial, meta, keep, damaged), group)
    except InvalidFile as error:
        if rank == 0:  # nobody writes there any more
            forget_partial(folder)
        raise InvalidFile(
            f"a checkpoint cannot be written to {shown(folder)}: {error}; its drive "
            f"has {_free(folder)} free"
        ) from error


def load(
    folder: Path,
    *,
    parts: Sequence[nn.Module],
    optimizer: Optimizer | None,
    meta: Mapping[str, Any],
) -> int:
    """Put the newest checkpoint in *folder* into *parts* and *optimizer*, in place.

    Every rank calls this at once. The optimizer's flags stay (fused, foreach …); its
    learning rate is the checkpoint's. Returns how many steps are done. One that is
    damaged is passed over.
    Raises InvalidFile if none is whole, Contradiction if it is of another model, job or
    optimizer.
    """
    return restore(folder, parts=parts, optimizer=optimizer, meta=meta).step


def restore(
    folder: Path,
    *,
    parts: Sequence[nn.Module],
    optimizer: Optimizer | None,
    meta: Mapping[str, Any],
) -> Found:
    """As `load`; gives what was read, and what was passed over."""
    names = first_rank(lambda: [one.name for one in whole(folder)])
    found = newest_sound(folder, names, meta, _sound)
    _require_same_optimizer(found.path, found.meta, optimizer)
    _read_into(found, parts, optimizer)
    for one in held(parts, optimizer):
        one.publish()
    if optimizer is not None and found.meta.get("lr"):
        optimizer.learning_rate = found.meta["lr"]
    return found


def _sound(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint of which every file has its hash, each looked at by
    one rank; raises InvalidFile on all of them."""
    rank, world = rank_and_world()

    def own() -> dict[str, Any]:
        meta = looked_at(path)
        files = sorted(meta.get("files") or {})
        require_undamaged(path, meta, files[rank::world])
        described(path)
        return meta

    return everywhere(own)[rank]


def _read_into(
    found: Found, parts: Sequence[nn.Module], optimizer: Optimizer | None
) -> None:
    """All that a checkpoint has of *parts* and *optimizer*."""
    name = f"checkpoint {shown(found.path)}"
    wanted = Wanted(name, described(found.path), found.meta.get("tied") or {})
    wanted.model(parts, optimizer)
    if optimizer is not None:
        wanted.states(held(parts, optimizer), optimizer.inner)
    read_wanted(wanted, Reader(found.path, wanted.found))


def read_wanted(wanted: Wanted, reader: Any) -> None:
    """Fill what is *wanted* from what *reader* stands for; raises InvalidFile."""
    targets: dict[str, Any] = {}
    again = [
        (name, value)
        for name, value in wanted.pairs
        if targets.setdefault(name, value) is not value
    ]
    try:
        with quiet(alone=not dist.is_initialized()):
            read_tensors(targets, storage_reader=reader)
    except (Exception, CheckpointException) as error:  # which is no Exception
        raise InvalidFile(f"{wanted.name} is damaged: {_reason(error)}") from error
    for name, value in again:  # both copies of a tied table, on one rank
        value.copy_(targets[name])


def _write(partial: Path, state: dict[str, Any], group: Group) -> None:
    try:
        with quiet(alone=not dist.is_initialized()):
            write_tensors(
                state, storage_writer=FileSystemWriter(partial), process_group=group
            )
    except (Exception, CheckpointException) as error:
        raise InvalidFile(_reason(error)) from error


def _extent(partial: Path, rank: int, one: Snapshot) -> dict[str, dict[str, Any]]:
    """What a rank adds to the manifest: the hashes of its own files among them."""
    own = [file.name for file in partial.glob(f"__{rank}_*")]
    if rank == 0:
        own.append(DESCRIPTION)  # a bit of it is as good as one of the tensors
    return {
        "tied": one.tied,
        "files": digests(partial, own),
        "sizes": sizes(partial, own),
    }


def _joined(everyones: Sequence[dict[str, dict[str, Any]]], key: str) -> dict[str, Any]:
    found = {name: one for some in everyones for name, one in some[key].items()}
    return dict(sorted(found.items()))


def _require_same_optimizer(
    path: Path, stored: Mapping[str, Any], optimizer: Optimizer | None
) -> None:
    here = None if optimizer is None else type(optimizer.inner).__name__
    if here is not None and stored.get("optimizer") != here:
        raise Contradiction(
            f"checkpoint {shown(path)} was trained with "
            f"{stored.get('optimizer') or 'no optimizer'}, this run uses {here}"
        )


def _free(folder: Path) -> str:
    try:
        return format_bytes(shutil.disk_usage(folder).free)
    except OSError:
        return "unknown bytes"


@contextmanager
def quiet(*, alone: bool) -> Iterator[None]:
    """One process alone is what is meant, where it is. Filters are of all threads, so
    others leave them."""
    if not alone:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _reason(error: BaseException) -> str:
    """Why, on one line; a failure on any rank is every rank's."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
