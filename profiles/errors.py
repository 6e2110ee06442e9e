"""Everything this project raises on purpose.

* MeshwrightError             exit_code, and a message: given, allowed, what to do
  - InvalidQuestion           exit 2: the question is wrong
      + UnknownName           no such model, cluster, device, schedule …; suggests
      + InvalidSpec           a number, model, cluster or layout that cannot exist
      + InvalidFile           unreadable, foreign, truncated or too large
      + Contradiction         pins, degrees, GPUs and batch that exclude each other
      + Unsupported           sound, but this part of the project does not do it
      + StaleProfile          samples of another device or software
  - NoAnswer                  exit 1: the question is sound, the answer is no
      + Infeasible            no layout is legal, or none fits; names the constraint
      + Unmeasured            no sample, no curve and no ceiling covers an operator
      + RunFailed             a training run died: rank, action, why
          ActionFailed        an action of the stream raised; which, and what
      + OutOfTime             time ran out before any plan was found
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class MeshwrightError(Exception):
    """Base of the tree; *exit_code* is what a command returns."""

    exit_code = 1


class InvalidQuestion(MeshwrightError):
    """The question is wrong: nothing was computed."""

    exit_code = 2


class UnknownName(InvalidQuestion):
    """A name that no catalogue holds. What is near it is looked for when it is told."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        super().__init__(what, name, sorted(known))

    def __str__(self) -> str:
        from difflib import get_close_matches  # of use to errors alone

        what, name, names = self.args
        near = get_close_matches(name.lower(), names, n=3, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(near)}?"
            if near
            else f"known: {', '.join(names)}"
        )
        return f"unknown {what} {name!r}; {hint}"


class InvalidSpec(InvalidQuestion):
    """Something described that cannot exist."""


class InvalidFile(InvalidQuestion):
    """A file that cannot be read as what it should be."""


class Contradiction(InvalidQuestion):
    """Options that exclude each other."""


class Unsupported(InvalidQuestion):
    """A sound request that this project, or this part of it, does not carry out."""


class StaleProfile(InvalidQuestion):
    """Samples that were taken on another device or with other software."""


class NoAnswer(MeshwrightError):
    """The question is sound, but the answer is no."""

    exit_code = 1


class Infeasible(NoAnswer):
    """No layout does it. *constraint* binds; *nearest* is what would change that, and
    *changes* say more of it, and of others, as documents; not *complete* where time was
    over before all were tried."""

    def __init__(
        self,
        message: str,
        *,
        constraint: str,
        nearest: str | None,
        changes: Iterable[Mapping[str, Any]] = (),
        complete: bool = True,
    ) -> None:
        super().__init__(message)
        self.constraint, self.nearest = constraint, nearest
        self.changes, self.complete = tuple(changes), complete


class Unmeasured(NoAnswer):
    """Nothing known covers an operator, link or device."""


class RunFailed(NoAnswer):
    """A training run died."""


class ActionFailed(RunFailed):
    """An action of the stream raised *error*."""

    def __init__(self, action: object, error: BaseException) -> None:
        super().__init__(f"{action} failed: {type(error).__name__}: {error}")
        self.action = str(action)


class OutOfTime(NoAnswer):
    """The time limit passed before any layout was found."""
