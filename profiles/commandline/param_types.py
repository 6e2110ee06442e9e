"""What an option's value may be: click's types, and functions from text to a value.

Each raises click.BadParameter, whose message says what was given and what is allowed;
`profiles.commandline.commands` puts the option's name before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

LARGEST = 10_000_000  # more devices, layers or micro-batches than anybody has
LARGEST_SEQUENCE = 1_000_000_000
LARGEST_SAMPLES = 10**15  # more sequences than a run has
LONGEST_TEXT = 4096  # PATH_MAX
MOST_COUNTS = 10_000  # pipeline stages

_SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_PLAIN = re.compile(r"[\w.,=:/+@-]+", re.ASCII)
_OFFLOADED = ("optimizer", "parameters", "activations")
_OFFLOAD_RULE = (
    "must be none, auto, or any of optimizer, parameters and activations=RATIO with a "
    "ratio from 0 to 1, separated by commas"
)


def shown(given: str) -> str:
    """How a message repeats what the user gave: plain, or quoted, and never long.

    >>> shown("-3"), shown("two words"), shown("")
    ('-3', "'two words'", "''")
    """
    short = given if len(given) <= 60 else given[:59] + "…"
    return short if _PLAIN.fullmatch(short) else repr(short)


def refuse(given: str, allowed: str) -> click.BadParameter:
    return click.BadParameter(f"{shown(given)}: {allowed}")


@contextmanager
def _or_refuse(given: object, allowed: str) -> Iterator[None]:
    """Say what is *allowed* where click refuses what was *given*."""
    try:
        yield
    except click.BadParameter:
        raise refuse(str(given), allowed) from None


class IntRange(click.IntRange):
    """Whole numbers from *least*; without *most*, to one beyond all that exists.

    >>> IntRange()("64")
    64
    """

    name = "n"

    def __init__(self, least: int = 1, most: int | None = None) -> None:
        super().__init__(least, most)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        least, most = self.min, LARGEST if self.max is None else self.max
        rule = f"from {least} to {most}" if most < LARGEST else f">= {least}, <= {most}"
        with _or_refuse(value, f"must be a whole number {rule}"):
            number = super().convert(value, param, ctx)
            if number > most:
                self.fail("beyond all that exists", param, ctx)
            return number


class FloatRange(click.FloatRange):
    """Finite numbers from *least* (above it, if *strictly*) to *most*."""

    name = "x"

    def __init__(self, least: float, most: float, *, strictly: bool = False) -> None:
        super().__init__(least, most, min_open=strictly)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        rule = f"{'>' if self.min_open else '>='} {self.min:g}, <= {self.max:g}"
        with _or_refuse(value, f"must be a number {rule}"):
            number = super().convert(value, param, ctx)
            if number != number:  # NaN is in every range of click's
                self.fail("not a number", param, ctx)
            return number


class Count(FloatRange):
    """A large number as people write it: 3e11, 300B, 1.5T; K, M, B and T are decimal.

    >>> Count(1, 1e18)("300B")
    300000000000.0
    """

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        plain = str(value).strip()
        scale = _SUFFIXES.get(plain[-1:].upper(), 1)
        number = plain[:-1] if scale > 1 else plain
        try:
            return super().convert(float(number) * scale, param, ctx)
        except ValueError:
            rule = f"from {self.min:g} to {self.max:g}, such as 3e11 or 300B"
            raise refuse(plain, f"must be a number {rule}") from None


class Choice(click.Choice[str]):
    """One of some names; a wrong one is told the nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return f"{shown(str(value))}: {nearest(str(value), self.choices)}"


class FilePath(click.Path):
    """A file's path; whether it is there is for its reader to say."""

    def __init__(self) -> None:
        super().__init__(readable=False, path_type=Path)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        return super().convert(text(str(value)), param, ctx)


class PagePath(FilePath):
    """Where a page for the browser is written."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        path = super().convert(value, param, ctx)
        if path.suffix.lower() not in (".html", ".htm"):
            raise refuse(str(value), "must end in .html: it is a page for the browser")
        return path


def some_of(*names: str) -> Any:
    """A comma-separated choice of *names*, or ``none``, in the order of *names*.

    >>> some_of("grad", "param", "tp")("tp, grad,tp")
    'grad,tp'
    """

    def choices(given: str) -> str:
        if given == "none":
            return given
        parts = [part.strip() for part in given.split(",")]
        for part in parts:
            if part not in names:
                raise refuse(given, nearest(part, (*names, "none")))
        return ",".join(name for name in names if name in parts)

    return choices


def counts(given: str) -> str:
    """Whole numbers from 0 on, separated by commas; `4x9` is four times a nine.

    >>> counts("8, 2x9,6")
    '8,9,9,6'
    """
    found: list[str] = []
    for part in given.split(","):
        often, _, number = part.strip().rpartition("x")
        with _or_refuse(given, "must be whole numbers such as 8,9,9,6 or 8,2x9,6"):
            times = IntRange(1, MOST_COUNTS)(often or 1)
            found += [str(IntRange(0, 10**18)(number))] * times
        if len(found) > MOST_COUNTS:
            raise refuse(given, f"must be {MOST_COUNTS} numbers at most")
    return ",".join(found)


def nearest(given: str, names: tuple[str, ...]) -> str:
    """The rule and, where something like *given* is among *names*, a suggestion."""
    from difflib import get_close_matches

    near = get_close_matches(given.lower()[:60], names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"must be one of {', '.join(names)}{hint}"


def text(given: str) -> str:
    """A name or a path: anything printable of a sane length."""
    if not given.strip():
        raise refuse(given, "must not be empty")
    if len(given) > LONGEST_TEXT or "\0" in given:
        raise refuse(given, f"must be at most {LONGEST_TEXT} characters, no NUL")
    return given


def offload(given: str) -> str:
    """``none``, ``auto``, or any of ``optimizer``, ``parameters`` and
    ``activations=RATIO``.

    >>> offload("activations=.5, optimizer")
    'optimizer,activations=0.5'
    """
    if given in ("none", "auto"):
        return given
    kept = {}
    for part in given.split(","):
        name, equals, share = part.strip().partition("=")
        if name not in _OFFLOADED or name in kept or (equals and name != "activations"):
            raise refuse(given, _OFFLOAD_RULE)
        with _or_refuse(given, _OFFLOAD_RULE):
            kept[name] = f"={FloatRange(0, 1)(share):g}" if equals else ""
    return ",".join(name + kept[name] for name in _OFFLOADED if name in kept)
