"""`Rescue`: a rank that lost its peers saves what it holds before it ends.

The launcher asks the others to end as soon as one worker has: they do so before their
next action, or where a collective tells that its peer is gone.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from torch import nn

from profiles.errors import RunFailed
from runtime.checkpoint import Snapshot, inventory, write_alone
from runtime.launch.failures import lost_peer
from runtime.optim import Optimizer, require_undoable

GRACE_S: Final = 60  # for the state of a large model to be written


class Interrupted(RunFailed):
    """The launcher asked this rank to end."""


class Trained(Protocol):
    """What is saved, and the step that it is in."""

    optimizer: Optimizer

    @property
    def updated(self) -> bool: ...

    def undo(self) -> None: ...


class Rescue:
    """Of a rank's *trainer* with *parts*; every rank makes one at once."""

    def __init__(
        self, folder: Path, rank: int, trainer: Trained, parts: Sequence[nn.Module]
    ) -> None:
        require_undoable(trainer.optimizer.inner)
        trainer.optimizer.watched = True
        self._folder, self._rank, self._trainer = folder, rank, trainer
        self._parts, self._whole = parts, inventory(parts)
        self._asked = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self._asked = True

    def require_wanted(self) -> None:
        """Raise Interrupted where this rank was asked to end."""
        if self._asked:
            raise Interrupted("the launcher ended it, since another worker had")

    def save(
        self, error: BaseException, done: int, meta: Callable[[], Mapping[str, Any]]
    ) -> bool:
        """After *error* in the step that follows the *done* ones: where a peer was
        lost, write the state after them; and first that of one more, if this rank has
        it, as the others may have gone on. Gives whether anything was written.
        """
        if not (isinstance(error, Interrupted) or self._asked or lost_peer(error)):
            return False
        if self._trainer.updated:
            self._write(done + 1, meta())
        self._trainer.undo()
        self._write(done, meta())
        return True

    def _write(self, step: int, meta: Mapping[str, Any]) -> None:
        one = Snapshot.of(step, self._parts, self._trainer.optimizer, meta)
        write_alone(self._folder, self._rank, one, self._whole)
