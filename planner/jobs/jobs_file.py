"""The file of `plan --jobs`: what is to be trained, as TOML or JSON."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

from profiles.errors import InvalidFile, InvalidSpec
from profiles.files import decode, read_json, read_text, shown
from profiles.units import HOUR_S

MOST_JOBS: Final = 200
WHAT: Final = "the file of jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One job: a model, with its tokens or its steps. `deadline_h` counts from now;
    jobs of a higher `priority` start first."""

    model: str
    name: str | None = None
    tokens: float | None = None
    steps: int | float | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    deadline_h: float | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.steps is None):
            has = "neither tokens nor" if self.tokens is None else "both tokens and"
            raise InvalidSpec(
                f"job {shown(self.name or self.model)} has {has} steps; give one of "
                "them"
            )
        for key in ("tokens", "steps", "seq_len", "global_batch", "deadline_h"):
            value = getattr(self, key)
            if value is not None and not 0 < value < 1e18:
                raise InvalidSpec(
                    f"job {shown(self.name or self.model)}: {key}={value:g} has to be "
                    "above 0 and below 1e18"
                )

    @property
    def deadline_s(self) -> float:
        return inf if self.deadline_h is None else self.deadline_h * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    jobs: list[Entry]


def read_jobs(path: Path) -> list[tuple[str, Entry]]:
    """The jobs of a file, each with a name of its own.

    Raises InvalidFile and InvalidSpec, saying which job and key.
    """
    document = _toml(path) if path.suffix == ".toml" else read_json(path, what=WHAT)
    file = decode(document, _File, what=f"{WHAT} {shown(path)}")
    if not 0 < len(file.jobs) <= MOST_JOBS:
        raise InvalidFile(
            f"{WHAT} {shown(path)} has {len(file.jobs)} jobs; give 1 to {MOST_JOBS}"
        )
    named: dict[str, Entry] = {}
    for one in file.jobs:
        name = one.name or one.model
        if name in named and one.name is not None:
            raise InvalidFile(f"{WHAT} {shown(path)} has two jobs called {shown(name)}")
        number = 2
        while name in named:
            name, number = f"{one.model} ({number})", number + 1
        named[name] = one
    return list(named.items())


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path, what=WHAT))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = str(error) or "nested too deeply"
        raise InvalidFile(f"{WHAT} {shown(path)} is no TOML: {reason}") from None
