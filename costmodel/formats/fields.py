"""`Fields`: the named values of a stranger's file, taken one by one and checked.

Values are those of JSON, or words of a command line: True for a bare flag, text for one
value, several as a tuple. What nobody took is left over, and told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from profiles.errors import InvalidFile, InvalidSpec
from profiles.files import shown
from profiles.limits import require

MOST_DIGITS: Final = 18
_ON: Final = ("true", "1", "yes", "on")
_OFF: Final = ("false", "0", "no", "off")


class Fields:
    """*values* by name; *what* they are of, for messages."""

    def __init__(self, values: Mapping[str, Any], what: str) -> None:
        self.values, self.what = dict(values), what
        self.taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def raw(self, name: str) -> Any:
        """The value as it stands; None where it is left out or null."""
        self.taken.add(name)
        return self.values.get(name)

    def skip(self, *names: str) -> None:
        """Take what says nothing beyond what is known."""
        self.taken.update(names)

    def defaults(self, **usual: Any) -> dict[str, Any]:
        """Those of the *usual* values that count because the file says nothing, by the
        names of Python; the file's may have hyphens."""
        return {
            name: value
            for name, value in usual.items()
            if not {name, name.replace("_", "-")} & self.values.keys()
        }

    def left(self) -> Iterator[str]:
        """Names that nobody asked for, in the file's order."""
        return (name for name in self.values if name not in self.taken)

    def wrong(self, name: str, allowed: str) -> InvalidFile:
        """What to raise for a value that is not what is *allowed*."""
        value = self.values.get(name)
        if isinstance(value, str) and "$" in value:
            return InvalidFile(
                f"{self.what}: {name} is {shown(value)}, which the file does not set; "
                "write the value there"
            )
        return InvalidFile(f"{self.what}: {name} {shown(value)} must be {allowed}")

    def integer(
        self, name: str, default: int | None = None, *, zero: bool = False
    ) -> int | None:
        """A whole number from 1 (or 0) on; raises InvalidFile and InvalidSpec."""
        value = self.raw(name)
        if value is None:
            return default
        number = _whole(value)
        if number is None:
            raise self.wrong(name, "a whole number")
        if not (zero and number == 0):
            self._require(name, number)
        return number

    def _require(self, name: str, number: int) -> None:
        try:
            require("size", number, name)
        except InvalidSpec as error:
            raise InvalidFile(f"{self.what}: {error}") from None

    def count(self, name: str, default: int) -> int:
        """The same, with a *default*."""
        found = self.integer(name, default)
        assert found is not None
        return found

    def number(self, name: str, default: float | None = None) -> float | None:
        """A finite number from 0 on."""
        value = self.raw(name)
        if value is None:
            return default
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ValueError(value)
            found = float(value)
        except (ValueError, OverflowError):
            raise self.wrong(name, "a number") from None
        if not 0 <= found <= 1e18:
            raise self.wrong(name, "a number from 0 to 1e18")
        return found

    def switch(self, name: str, *, default: bool = False) -> bool:
        """Whether a flag is there, or what a truth value says."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if str(value).lower() in _ON:
            return True
        if str(value).lower() in _OFF:
            return False
        raise self.wrong(name, "true or false")

    def word(
        self, name: str, allowed: Iterable[str] = (), default: str | None = None
    ) -> str | None:
        """Text, one of those *allowed* where some are named."""
        value = self.raw(name)
        if value is None:
            return default
        known = tuple(allowed)
        if not isinstance(value, str) or (known and value not in known):
            raise self.wrong(name, f"one of {', '.join(known)}" if known else "text")
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """All values of a name, as text."""
        value = self.raw(name)
        if value is None or value is True:
            return ()
        several = value if isinstance(value, tuple | list) else (value,)
        return tuple(map(str, several))

    def section(self, name: str) -> Fields:
        """The members of an object; none where it is left out."""
        value = self.raw(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields({str(key): one for key, one in value.items()}, self._at(name))

    def _at(self, name: str) -> str:
        return f"{self.what}: {name}" if ":" not in self.what else f"{self.what}.{name}"


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip().replace("_", "")
        digits = text.isascii() and text.lstrip("+-").isdigit()
        return int(text) if digits and len(text) <= MOST_DIGITS else _scientific(text)
    if isinstance(value, float):
        return _scientific(str(value))
    return value if isinstance(value, int) else None


def _scientific(text: str) -> int | None:
    """`5e8`, as DeepSpeed's files have sizes."""
    try:
        found = float(text)
    except ValueError:
        return None
    return int(found) if abs(found) < 1e18 and found == round(found) else None
