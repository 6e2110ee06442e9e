"""What ranks do together and must all know the end of: an error of one is everyone's.

Each call is a collective of *group* (None: of all ranks), so a thread that makes some
beside training has a group of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch.distributed as dist

from profiles.errors import Contradiction, InvalidFile, MeshwrightError, Unsupported
from profiles.files import why

T = TypeVar("T")
Group = dist.ProcessGroup | None
_KINDS: Final = {one.__name__: one for one in (InvalidFile, Contradiction, Unsupported)}


def rank_and_world(group: Group = None) -> tuple[int, int]:
    """This rank in *group*, and how many it has."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def everywhere(action: Callable[[], T], group: Group = None) -> list[T]:
    """What *action* gives on each rank, on every rank, or the error of the first that
    has one."""
    _, world = rank_and_world(group)
    if world == 1:
        return [_value(_outcome(action))]
    outcomes: list[Any] = [None] * world
    dist.all_gather_object(outcomes, _outcome(action), group=group)
    return [_value(one) for one in outcomes]


def first_rank(action: Callable[[], T], group: Group = None) -> T:
    """What *action* gives on rank 0, on every rank, or its error."""
    rank, world = rank_and_world(group)
    if world == 1:
        return _value(_outcome(action))  # type: ignore[no-any-return]
    outcome: list[Any] = [_outcome(action) if rank == 0 else None]
    dist.broadcast_object_list(outcome, group=group, group_src=0)
    return _value(outcome[0])  # type: ignore[no-any-return]


def _outcome(action: Callable[[], T]) -> tuple[T | None, str, str]:
    """(value, kind of error, message)."""
    try:
        return action(), "", ""
    except OSError as error:
        return None, InvalidFile.__name__, why(error)
    except MeshwrightError as error:
        return None, type(error).__name__, str(error)


def _value(outcome: tuple[Any, str, str]) -> Any:
    value, kind, message = outcome
    if kind:
        raise _KINDS.get(kind, InvalidFile)(message)
    return value
