"""What an option's value may be: functions from its text to a checked value.

Each raises click.BadParameter, whose message says what was given and what is allowed;
`profiles.commandline.commands` puts the option's name before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import click

LARGEST = 10_000_000  # more devices, layers or micro-batches than anybody has
LARGEST_SEQUENCE = 1_000_000_000
LARGEST_SAMPLES = 10**15  # more sequences than a run has
LONGEST_TEXT = 4096  # PATH_MAX
MOST_COUNTS = 10_000  # pipeline stages

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)
_PLAIN = re.compile(r"[\w.,=:/+@-]+", re.ASCII)


def shown(given: str) -> str:
    """How a message repeats what the user gave: plain, or quoted, and never long.

    >>> shown("-3"), shown("two words"), shown("")
    ('-3', "'two words'", "''")
    """
    short = given if len(given) <= 60 else given[:59] + "…"
    return short if _PLAIN.fullmatch(short) else repr(short)


def refuse(given: str, allowed: str) -> click.BadParameter:
    return click.BadParameter(f"{shown(given)}: {allowed}")


def whole(least: int = 1, most: int = LARGEST) -> Callable[[str], int]:
    """A whole number from *least* to *most*.

    >>> whole()("64")
    64
    """
    rule = f"from {least} to {most}" if most < LARGEST else f">= {least}, <= {most}"

    def count(given: str) -> int:
        value = int(given) if _WHOLE.fullmatch(given.strip()) else None
        if value is None or not least <= value <= most:
            raise refuse(given, f"must be a whole number {rule}")
        return value

    return count


def real(
    least: float, most: float, *, strictly: bool = False
) -> Callable[[str], float]:
    """A finite number from *least* (above it, if *strictly*) to *most*."""

    def number(given: str) -> float:
        value = float(given) if _REAL.fullmatch(given.strip()) else math.nan
        if not (least < value if strictly else least <= value):
            raise refuse(
                given, f"must be a number {'>' if strictly else '>='} {least:g}"
            )
        if value > most:
            raise refuse(given, f"must be a number <= {most:g}")
        return value

    return number


def one_of(*names: str) -> Callable[[str], str]:
    """One of *names*; a wrong one is told the nearest."""

    def choice(given: str) -> str:
        if given not in names:
            raise refuse(given, nearest(given, names))
        return given

    return choice


def some_of(*names: str) -> Callable[[str], str]:
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
        few = _WHOLE.fullmatch(often or "1") and _WHOLE.fullmatch(number)
        if not few or not 1 <= int(often or 1) <= MOST_COUNTS or int(number) < 0:
            raise refuse(given, "must be whole numbers such as 8,9,9,6 or 8,2x9,6")
        found += [str(int(number))] * int(often or 1)
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


def path(given: str) -> Path:
    """A file's path; whether it is there is for its reader to say."""
    return Path(text(given))


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
        if name not in _OFFLOADED or name in kept:
            raise refuse(given, _OFFLOAD_RULE)
        if equals and name != "activations":
            raise refuse(given, _OFFLOAD_RULE)
        kept[name] = f"={_ratio(given, share):g}" if equals else ""
    return ",".join(name + kept[name] for name in _OFFLOADED if name in kept)


_OFFLOADED = ("optimizer", "parameters", "activations")
_OFFLOAD_RULE = (
    "must be none, auto, or any of optimizer, parameters and activations=RATIO with a "
    "ratio from 0 to 1, separated by commas"
)


def _ratio(given: str, share: str) -> float:
    try:
        return real(0, 1)(share)
    except click.BadParameter:
        raise refuse(given, _OFFLOAD_RULE) from None
