"""Checkpoints: written by all ranks of one layout, read by all ranks of any other.

PyTorch's distributed checkpoint moves the tensors, each rank its own pieces. A run that
is resumed with the same layout goes on bit for bit; with another one it reads the same
numbers and differs by rounding only.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as read_tensors
from torch.distributed.checkpoint.state_dict_saver import save as write_tensors

from profiles.errors import Contradiction, InvalidFile, MeshwrightError
from profiles.files import shown
from profiles.units import format_bytes
from runtime.checkpoint.directory import (
    DESCRIPTION,
    Reader,
    begin,
    checksums,
    described,
    files_of,
    finish,
    forget_partial,
    latest,
    read_meta,
    remedy,
    require_fresh,
    require_resumable,
    require_undamaged,
    sizes,
)
from runtime.checkpoint.state import Wanted, held, ties, written
from runtime.optim import Optimizer

__all__ = [
    "forget_partial",
    "latest",
    "load",
    "meta",
    "require_fresh",
    "require_resumable",
    "save",
]

T = TypeVar("T")


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
    partial = _first_rank(lambda: begin(folder, step))
    _write(partial, dict(written(parts, optimizer)))
    rank, _ = _rank_and_world()
    own = [file.name for file in partial.glob(f"__{rank}_*")]
    if rank == 0:
        own.append(DESCRIPTION)  # a bit of it is as good as one of the tensors
    extent = {
        "optimizer": None if optimizer is None else type(optimizer.inner).__name__,
        "lr": None if optimizer is None else optimizer.learning_rate,
        "tied": _gathered(ties(parts)),
        "files": _gathered(checksums(partial, own)),
        "sizes": _gathered(sizes(partial, own)),
    }
    _first_rank(lambda: finish(partial, {**meta, **extent}))


def load(
    folder: Path,
    *,
    parts: Sequence[nn.Module],
    optimizer: Optimizer | None,
    meta: Mapping[str, Any],
) -> int:
    """Put the newest checkpoint in *folder* into *parts* and *optimizer*, in place.

    Every rank calls this at once. The optimizer's flags stay (fused, foreach …); its
    learning rate is the checkpoint's. Returns how many steps are done.
    Raises InvalidFile if there is none or it is damaged, Contradiction if it is of
    another model, job or optimizer.
    """
    step = require_resumable(folder, meta)
    path = latest(folder)
    assert path is not None
    stored = read_meta(path)
    _require_same_optimizer(path, stored, optimizer)
    try:
        _read_into(path, stored, parts, optimizer)
    except InvalidFile as error:
        raise InvalidFile(f"{error}; {remedy(path)}") from error
    for one in held(parts, optimizer):
        one.publish()
    if optimizer is not None and stored.get("lr"):
        optimizer.learning_rate = stored["lr"]
    return step


def meta(folder: Path) -> dict[str, Any]:
    """What the newest checkpoint in *folder* says of itself."""
    path = latest(folder)
    return {} if path is None else read_meta(path)


def _read_into(
    path: Path,
    stored: Mapping[str, Any],
    parts: Sequence[nn.Module],
    optimizer: Optimizer | None,
) -> None:
    """All that the checkpoint at *path* has of *parts* and *optimizer*."""
    found = described(path)
    rank, world = _rank_and_world()
    if DESCRIPTION in (stored.get("files") or {}):
        require_undamaged(path, stored, [DESCRIPTION])
    require_undamaged(path, stored, files_of(found)[rank::world])
    wanted = Wanted(path, found, stored.get("tied") or {})
    wanted.model(parts, optimizer)
    if optimizer is not None:
        wanted.states(held(parts, optimizer), optimizer.inner)
    _read(path, wanted)


def _read(path: Path, wanted: Wanted) -> None:
    targets: dict[str, Any] = {}
    again = [
        (name, value)
        for name, value in wanted.pairs
        if targets.setdefault(name, value) is not value
    ]
    try:
        with _quiet():
            read_tensors(targets, storage_reader=Reader(path, wanted.found))
    except (Exception, CheckpointException) as error:  # which is no Exception
        raise InvalidFile(
            f"checkpoint {shown(path)} is damaged: {_reason(error)}"
        ) from error
    for name, value in again:  # both copies of a tied table, on one rank
        value.copy_(targets[name])


def _write(partial: Path, state: dict[str, Any]) -> None:
    try:
        with _quiet():
            write_tensors(state, storage_writer=FileSystemWriter(partial))
    except (Exception, CheckpointException) as error:
        free = format_bytes(shutil.disk_usage(partial.parent).free)
        shutil.rmtree(partial, ignore_errors=True)
        raise InvalidFile(
            f"checkpoint {shown(partial)} cannot be written: {_reason(error)}; its "
            f"drive has {free} free"
        ) from error


def _require_same_optimizer(
    path: Path, stored: Mapping[str, Any], optimizer: Optimizer | None
) -> None:
    here = None if optimizer is None else type(optimizer.inner).__name__
    if here is not None and stored.get("optimizer") != here:
        raise Contradiction(
            f"checkpoint {shown(path)} was trained with "
            f"{stored.get('optimizer') or 'no optimizer'}, this run uses {here}"
        )


def _first_rank(action: Callable[[], T]) -> T:
    """What *action* gives on rank 0, on every rank, or its error."""
    rank, world = _rank_and_world()
    if world == 1:
        return action()
    outcome: list[Any] = [None, None]
    if rank == 0:
        try:
            outcome[0] = action()
        except (OSError, MeshwrightError) as error:
            outcome[1] = str(error)
    dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise InvalidFile(f"the checkpoint cannot be written: {outcome[1]}")
    return outcome[0]  # type: ignore[no-any-return]


def _rank_and_world() -> tuple[int, int]:
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def _gathered(own: dict[str, T]) -> dict[str, T]:
    """The entries of all ranks."""
    _, world = _rank_and_world()
    if world == 1:
        return own
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, own)
    return {name: other for one in everyone for name, other in one.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """One process alone is what is meant, where it is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _reason(error: BaseException) -> str:
    """Why, on one line; a failure on any rank is every rank's."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
