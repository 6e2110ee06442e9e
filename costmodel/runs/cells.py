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
LONGEST_SHOWN: Final = 40
_TRUE: Final = dict.fromkeys(("y", "yes", "true", "1"), True)
_FLAGS: Final = {**_TRUE, **dict.fromkeys(("n", "no", "false", "0"), False)}
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Typed reading of text; every cell that is there is not empty."""

    text: Mapping[str, str]
    assumed: dict[str, Any] = field(default_factory=dict)

    def word(self, column: str) -> str | None:
        return self.text.get(column)

    def whole(self, column: str, least: int = 1, most: int = MOST) -> int | None:
        """A count from *least* to *most*, also written 64.0 or 1e3.

        Raises InvalidSpec with column and value otherwise.
        """
        number = self.number(column, most=math.inf)
        if number is None:
            return None
        if number != int(number) or not least <= number <= most:
            raise self.wrong(column, f"a whole number from {least:,} to {most:,}")
        return int(number)

    def needed(self, column: str, most: int = MOST) -> int:
        """A count that nothing else tells; raises InvalidSpec where it is missing."""
        found = self.whole(column, most=most)
        if found is None:
            raise self.missing(column, "fill it in")
        return found

    def number(self, column: str, most: float = MOST, least: float = 0) -> float | None:
        """A number from *least* to *most*; raises InvalidSpec with column and value."""
        text = self.text.get(column)
        if text is None:
            return None
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not math.isfinite(found) or "_" in text:
            raise self.wrong(column, "a number, or empty where it is unknown")
        if not least <= found <= most:
            raise self.wrong(column, f"a number from {least:g} to {most:,}")
        return found

    def flag(self, column: str) -> bool | None:
        """y or n."""
        text = self.text.get(column)
        if text is None:
            return None
        found = _FLAGS.get(text.lower())
        if found is None:
            raise self.wrong(column, "y or n, or empty where it is unknown")
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

    def missing(self, column: str, remedy: str) -> InvalidSpec:
        """The error of an empty cell that no default fills."""
        return InvalidSpec(f"{column} is missing: {remedy}")

    def wrong(self, column: str, allowed: str) -> InvalidSpec:
        """The error of a cell that cannot be read: column, value, what is allowed."""
        text = self.text[column]
        shown = text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"
        return InvalidSpec(f"{column}={shown!r} must be {allowed}")
