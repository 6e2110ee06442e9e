"""`Cells`: the filled-in cells of a row, read as numbers, words and flags.

Whatever is filled in for an empty cell is noted in `assumed`, by its column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from profiles.errors import InvalidSpec, UnknownName

MOST: Final = 10**9  # no count of a training run is larger
_FLAGS: Final = {"y": True, "yes": True, "n": False, "no": False}
_FLAGS_TOO: Final = {"true": True, "1": True, "false": False, "0": False}
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Typed reading of text; every cell that is there is not empty."""

    text: Mapping[str, str]
    assumed: dict[str, Any] = field(default_factory=dict)

    def word(self, column: str) -> str | None:
        return self.text.get(column)

    def whole(self, column: str, least: int = 1) -> int | None:
        """A count from *least* to 10^9, also written 64.0 or 1e3.

        Raises InvalidSpec with column and value otherwise.
        """
        number = self.number(column)
        if number is None:
            return None
        if number != int(number) or not least <= number <= MOST:
            raise InvalidSpec(
                f"{column}={self.text[column]!r} must be a whole number from {least} "
                f"to {MOST:,}"
            )
        return int(number)

    def number(self, column: str) -> float | None:
        """A finite number >= 0; raises InvalidSpec with column and value."""
        text = self.text.get(column)
        if text is None:
            return None
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not math.isfinite(found) or found < 0 or not text.isascii() or "_" in text:
            raise InvalidSpec(
                f"{column}={_short(text)} is not a number >= 0; write one, or leave "
                "the cell empty where it is unknown"
            )
        return found

    def flag(self, column: str) -> bool | None:
        """y or n."""
        text = self.text.get(column)
        if text is None:
            return None
        found = {**_FLAGS, **_FLAGS_TOO}.get(text.lower())
        if found is None:
            raise InvalidSpec(f"{column}={_short(text)} must be y or n, or empty")
        return found

    def choice(self, column: str, allowed: Iterable[str]) -> str | None:
        """One of *allowed*; raises UnknownName."""
        text = self.text.get(column)
        if text is None:
            return None
        names = list(allowed)
        if text.lower() not in names:
            raise UnknownName(column, text[:80], names)
        return text.lower()

    def given(
        self, column: str, found: _T | None, default: _T | Callable[[], _T]
    ) -> _T:
        """*found*, or the default, which is then noted as assumed."""
        if found is not None:
            return found
        filled: _T = default() if callable(default) else default
        self.assumed[column] = filled
        return filled

    def required(self, column: str, found: _T | None, remedy: str) -> _T:
        """*found*; raises InvalidSpec that names the missing cell."""
        if found is None:
            raise InvalidSpec(f"{column} is missing and has no default; {remedy}")
        return found


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
