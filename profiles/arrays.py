"""`Array`: a NumPy array of numbers; its shape is said where it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import add, itemgetter, methodcaller
from typing import Any, Self

from numpy.typing import NDArray

Array = NDArray[Any]


class Arrays:
    """A base of dataclasses whose fields are all arrays, or such dataclasses again:
    what is done to one is done to every field."""

    __slots__ = ()

    def each(self, change: Callable[..., Any], *others: Self) -> Self:
        """*change* of every field, and of the same field of *others*."""
        names = [item.name for item in fields(self)]  # type: ignore[arg-type]
        both = (self, *others)
        return type(self)(
            **{name: change(*(getattr(one, name) for one in both)) for name in names}
        )

    def __getitem__(self, index: Any) -> Self:
        return self.each(itemgetter(index))

    def __add__(self, other: Self) -> Self:
        return self.each(add, other)

    def where(self, condition: Any) -> Self:
        """What holds where *condition* does, else none."""
        return self.each(methodcaller("where", condition))
