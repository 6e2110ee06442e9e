"""`Ranges`: whole numbers written as people write them, `0-7,16-23`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from profiles.errors import InvalidSpec

_TEXT = re.compile(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*")


@dataclass(frozen=True, slots=True)
class Ranges:
    """Disjoint rising spans `(first, last)`, both ends included."""

    spans: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        before = -1
        for first, last in self.spans:
            if first <= before or last < first:
                raise InvalidSpec(f"{self} must rise and not overlap, such as 0-7,16")
            before = last

    @classmethod
    def parse(cls, text: str) -> Ranges:
        """Read `0-7,16`; raises InvalidSpec.

        >>> len(Ranges.parse("0-7,16"))
        9
        """
        if not _TEXT.fullmatch(text):
            raise InvalidSpec(f"{text!r} is not a list of ranges such as 0-7,16-23")
        ends = (part.split("-") for part in text.split(","))
        return cls(tuple((int(part[0]), int(part[-1])) for part in ends))

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Ranges:
        """The shortest writing of *numbers*, which must rise.

        >>> str(Ranges.of([0, 1, 2, 5]))
        '0-2,5'
        """
        spans: list[tuple[int, int]] = []
        for number in numbers:
            if spans and number == spans[-1][1] + 1:
                spans[-1] = (spans[-1][0], number)
            else:
                spans.append((number, number))
        return cls(tuple(spans))

    def __str__(self) -> str:
        return ",".join(
            f"{first}" if first == last else f"{first}-{last}"
            for first, last in self.spans
        )

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.spans)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.spans:
            yield from range(first, last + 1)
